// Combines the partials that epilogue::RowReduce left, in the order of their slots.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/row_reduce.h"

namespace cutlass_ops {
namespace kernel {

struct CombineRowsConfig {
  static constexpr int kThreads = 256;
  /// Up to so many slots a thread takes a row alone, beyond it a warp does.
  static constexpr int kSlotsPerThread = 8;
};

/// partials [rows, slots] -> out [rows]; kLanes (1 or 32) threads share a row.
template <class Monoid, int kLanes>
__global__ void __launch_bounds__(CombineRowsConfig::kThreads) combine_rows(float const* partials,
                                                                            int slots, float* out,
                                                                            int rows) {
  static_assert(kLanes == 1 || kLanes == 32, "a thread or a warp");
  wait_for_predecessor();
  release_successor();
  constexpr int kRowsPerCta = CombineRowsConfig::kThreads / kLanes;
  int const lane = threadIdx.x % kLanes;
  std::int64_t const stride = std::int64_t{gridDim.x} * kRowsPerCta;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerCta + threadIdx.x / kLanes; row < rows;
       row += stride) {
    float value = Monoid::identity();
    for (int slot = lane; slot < slots; slot += kLanes) {
      value = Monoid::combine(value, partials[row * slots + slot]);
    }
    if constexpr (kLanes == 32) {
      value = epilogue::warp_reduce<Monoid>(value);
    }
    if (lane == 0) {
      out[row] = value;
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
