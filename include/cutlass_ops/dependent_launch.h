// Programmatic dependent launch: a kernel whose CTAs come to an SM as soon as the kernel before it
// in the stream leaves room, and wait there for its results, instead of being launched after its
// end. Compute capability 9.0 brought it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cutlass_ops/hopper_code.h"
#include "cutlass_ops/launch.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {

inline cudaLaunchAttribute dependent_attribute() {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

/// Like launch_with_shared, for a kernel that waits as predecessor.h says: where its code does
/// wait, which code built for an older architecture does not, whatever the device.
template <auto kKernel, class... Arguments>
Status launch_dependent(char const* what, std::int64_t ctas, int threads, std::size_t shared_bytes,
                        cudaStream_t stream, Arguments const&... arguments) {
  cudaLaunchAttribute attribute = dependent_attribute();
  return launch_with_attributes(what, kKernel, ctas, threads, shared_bytes, stream, &attribute,
                                has_hopper_code<kKernel>() ? 1 : 0, arguments...);
}

}  // namespace cutlass_ops
