// Programmatic dependent launch: a kernel whose CTAs come to an SM as soon as the kernel before it
// in the stream leaves room, and wait there for its results, instead of being launched after its
// end. Compute capability 9.0 brought it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/hopper_code.h"
#include "cutlass_ops/launch.h"

namespace cutlass_ops {

/// Waits until everything before this kernel in its stream is done and visible. A kernel that is
/// launched by launch_dependent calls it before it touches memory.
CUTLASS_OPS_DEVICE void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel's CTAs come once every CTA of this one has called it or ended.
CUTLASS_OPS_DEVICE void release_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline cudaLaunchAttribute dependent_attribute() {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

/// Like launch_with_shared, for a kernel that begins with wait_for_predecessor: where its code does
/// wait, which code built for an older architecture does not, whatever the device.
template <auto kKernel, class... Arguments>
Status launch_dependent(char const* what, std::int64_t ctas, int threads, std::size_t shared_bytes,
                        cudaStream_t stream, Arguments const&... arguments) {
  cudaLaunchAttribute attribute = dependent_attribute();
  return launch_with_attributes(what, kKernel, ctas, threads, shared_bytes, stream, &attribute,
                                has_hopper_code<kKernel>() ? 1 : 0, arguments...);
}

}  // namespace cutlass_ops
