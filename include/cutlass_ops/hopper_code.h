// Whether what compute capability 9.0 brought (clusters, dependent launch) is there to be used.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace cutlass_ops {

/// Whether the code of `kKernel` that runs on the current device was compiled for compute
/// capability 9.0 or newer. The device's own capability does not tell: a newer GPU than the build
/// knows runs PTX of an older one. Asked of the driver once for every device.
template <auto kKernel>
bool has_hopper_code() {
  static std::atomic<std::uint64_t> known{0};
  static std::atomic<std::uint64_t> yes{0};
  int device = 0;
  bool const remembered = cudaGetDevice(&device) == cudaSuccess && device < 64;
  std::uint64_t const bit = remembered ? std::uint64_t{1} << device : 0;
  if ((known.load(std::memory_order_acquire) & bit) != 0) {
    return (yes.load(std::memory_order_relaxed) & bit) != 0;
  }
  cudaFuncAttributes attributes;
  bool const answer =
      cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess && attributes.ptxVersion >= 90;
  yes.fetch_or(answer ? bit : 0, std::memory_order_relaxed);
  known.fetch_or(bit, std::memory_order_release);
  return answer;
}

}  // namespace cutlass_ops
