// Softmax over rows of any length and on any architecture: two passes over the source, the second
// mostly from L2.
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/row_softmax.h"

namespace cutlass_ops {
namespace kernel {

/// Running maximum and the sum of exponentials relative to it: Milakov and Gimelshein, "Online
/// normalizer calculation for softmax", arXiv:1805.02867.
struct OnlineSum {
  float largest = -INFINITY;
  float sum = 0.0f;

  CUTLASS_OPS_DEVICE void rescale(float new_largest) {
    // Nothing but -inf so far: exp(-inf - -inf) would be NaN, and the sum is 0.
    if (new_largest != largest) {
      sum *= expf(largest - new_largest);
      largest = new_largest;
    }
  }
};

struct StreamingRows {
  static constexpr int kThreads = 1024;
};

/// One CTA per row.
template <class Chain>
__global__ void __launch_bounds__(StreamingRows::kThreads) row_softmax_streaming(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  constexpr int kThreads = StreamingRows::kThreads;
  int const row = int(blockIdx.x);
  float* const out = params.out + std::int64_t{row} * params.columns;
  epilogue::Stage<epilogue::Bias, epilogue::MatrixSource> const source{params.bias, params.source};
  OnlineSum online;
  CUTLASS_OPS_UNROLL_BY(4)
  for (int column = threadIdx.x * 4; column < params.columns; column += kThreads * 4) {
    auto const z = params.chain.template evaluate<4>(source, row, column);
    float largest = online.largest;
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < 4; ++j) {
      largest = column + j < params.columns ? fmaxf(largest, z[j]) : largest;
    }
    online.rescale(largest);
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < 4; ++j) {
      // -inf adds nothing; beside a maximum of -inf its difference would be NaN.
      bool const counts = column + j < params.columns && z[j] != -INFINITY;
      online.sum += counts ? expf(z[j] - largest) : 0.0f;
    }
  }
  float const largest = reduce_threads<FloatMax, kThreads>(online.largest);
  online.rescale(largest);
  float const scale = 1.0f / reduce_threads<epilogue::SumMonoid, kThreads>(online.sum);
  for (int column = threadIdx.x * 4; column < params.columns; column += kThreads * 4) {
    auto const z = params.chain.template evaluate<4>(source, row, column);
    auto const y =
        epilogue::map(z, [largest, scale](float x) { return expf(x - largest) * scale; });
    epilogue::store_columns<4>(out + column, y, params.columns - column, params.vectorized);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
