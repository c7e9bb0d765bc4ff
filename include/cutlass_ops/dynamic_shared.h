// More than 48 KB of shared memory for a kernel.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "cutlass_ops/status.h"

namespace cutlass_ops {

/// Lets kKernel have kBytes of dynamic shared memory on the current device: asked of the driver
/// once for every device, for each question costs a call.
template <auto kKernel, int kBytes>
Status allow_dynamic_shared(char const* what) {
  if constexpr (kBytes <= 48 * 1024) {
    return {};
  }
  static std::atomic<std::uint64_t> asked{0};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  std::uint64_t const bit = device < 64 ? std::uint64_t{1} << device : 0;
  if (error == cudaSuccess && (asked.load(std::memory_order_relaxed) & bit) == 0) {
    error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    asked.fetch_or(error == cudaSuccess ? bit : 0, std::memory_order_relaxed);
  }
  return {error, what};
}

}  // namespace cutlass_ops
