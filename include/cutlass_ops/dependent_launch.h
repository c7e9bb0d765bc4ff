// Programmatic dependent launch: a kernel whose CTAs come to an SM as soon as the kernel before it
// in the stream leaves room, and wait there for its results, instead of being launched after its
// end. Compute capability 9.0 brought it.
#pragma once

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/status.h"

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

/// Whether the code of `kKernel` that runs on the current device waits: code built for an older
/// architecture does not, whatever the device. Asked of the driver once for every device.
template <auto kKernel>
bool waits_for_predecessor() {
  static std::atomic<std::uint64_t> known{0};
  static std::atomic<std::uint64_t> waits{0};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= 64) {
    return false;
  }
  std::uint64_t const bit = std::uint64_t{1} << device;
  if ((known.load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess && attributes.ptxVersion >= 90) {
      waits.fetch_or(bit, std::memory_order_relaxed);
    }
    known.fetch_or(bit, std::memory_order_release);
  }
  return (waits.load(std::memory_order_relaxed) & bit) != 0;
}

template <class... Parameters, class... Arguments>
cudaError_t launch_with_attributes(void (*kernel)(Parameters...), cudaLaunchConfig_t const& config,
                                   Arguments const&... arguments) {
  cudaError_t const error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  return error == cudaSuccess ? cudaGetLastError() : error;
}

/// Like launch_with_shared, for a kernel that begins with wait_for_predecessor.
template <auto kKernel, class... Arguments>
Status launch_dependent(char const* what, std::int64_t ctas, int threads, std::size_t shared_bytes,
                        cudaStream_t stream, Arguments const&... arguments) {
  if (ctas == 0) {
    return {};
  }
  if (ctas > INT_MAX) {
    return {cudaErrorInvalidConfiguration, what};  // the limit of grid.x
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = waits_for_predecessor<kKernel>() ? 1 : 0;
  return {launch_with_attributes(kKernel, config, arguments...), what};
}

}  // namespace cutlass_ops
