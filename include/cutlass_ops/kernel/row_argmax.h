// The maximum of scale * activation(h) over each row, where it stands, and its slope there: what a
// training step of a row maximum needs of the matrix h, which need not be kept.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/winners.h"

namespace cutlass_ops {
namespace kernel {

/// The rule of torch.max over a dimension: the first NaN, else the first of the largest.
struct FirstMaximum {
  float value = -INFINITY;
  int column = INT_MAX;

  CUTLASS_OPS_HOST_DEVICE void take(FirstMaximum const& other) {
    bool const before = other.column < column;
    bool const is_nan = value != value;
    bool const other_is_nan = other.value != other.value;
    if (other_is_nan ? (!is_nan || before)
                     : (!is_nan && (other.value > value || (other.value == value && before)))) {
      *this = other;
    }
  }
};

template <int kThreadsPerRow_>
struct RowArgmaxConfig {
  static constexpr int kThreads = 256;
  static constexpr int kThreadsPerRow = kThreadsPerRow_;
  static constexpr int kRows = kThreads / kThreadsPerRow;
};

template <class Config, class Activation>
CUTLASS_OPS_DEVICE FirstMaximum first_maximum(RowArgmaxParams const& params, float const* row,
                                              int thread) {
  constexpr int kThreads = Config::kThreadsPerRow;
  FirstMaximum best;
  CUTLASS_OPS_UNROLL_BY(4)
  for (int column = thread; column < params.columns; column += kThreads) {
    best.take({params.scale * Activation::apply(row[column]), column});
  }
  CUTLASS_OPS_UNROLL
  for (int offset = 16; offset > 0; offset /= 2) {
    best.take({__shfl_xor_sync(0xffffffffu, best.value, offset),
               __shfl_xor_sync(0xffffffffu, best.column, offset)});
  }
  if constexpr (kThreads > 32) {
    __shared__ FirstMaximum of_warps[kThreads / 32];
    __syncthreads();  // those of the row before have been read
    if (threadIdx.x % 32 == 0) {
      of_warps[threadIdx.x / 32] = best;
    }
    __syncthreads();
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      best.take(of_warps[warp]);
    }
  }
  return best;
}

/// A warp a row, or, where rows are long, a CTA.
template <class Config, class Activation>
__global__ void __launch_bounds__(Config::kThreads) row_argmax(
    __grid_constant__ RowArgmaxParams const params) {
  constexpr int kThreads = Config::kThreadsPerRow;
  static_assert(kThreads == 32 || kThreads == Config::kThreads, "a warp or the CTA");
  wait_for_predecessor();
  release_successor();
  int const thread = threadIdx.x % kThreads;
  std::int64_t const step = std::int64_t{gridDim.x} * Config::kRows;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Config::kRows + threadIdx.x / kThreads;
       row < params.rows; row += step) {
    float const* const h = params.h + row * params.row_stride;
    FirstMaximum const best = first_maximum<Config, Activation>(params, h, thread);
    if (thread == 0) {
      params.values[row] = best.value;
      params.winners[row] = best.column;
      params.slopes[row] = params.scale * Activation::derivative(h[best.column]);
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
