// Softmax over each row of chain(source): softmax(z), or softmax(gelu(z + bias)) in one pass.
//
// NaN and +inf need no case of their own: exp(NaN - m) is NaN, exp(inf - inf) is NaN, and either
// makes the sum, and so the whole row, NaN, as torch.softmax has it. The maximum may drop NaN for
// that reason. A row of -inf alone gives NaN too.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"

namespace cutlass_ops {
namespace kernel {

template <class Chain>
struct RowSoftmaxParams {
  epilogue::MatrixSource source;
  Chain chain;
  float* out;  ///< [rows, columns], contiguous; may be the source itself
  int rows;
  int columns;
  bool vectorized;  ///< rows of `out` are 16-byte aligned
};

/// Unlike epilogue::MaxMonoid it drops NaN, which comes back through the sum.
struct FloatMax {
  CUTLASS_OPS_DEVICE static float identity() { return -INFINITY; }
  CUTLASS_OPS_DEVICE static float combine(float a, float b) { return fmaxf(a, b); }
};

/// Combines over the kThreads threads that share a row: part of a warp, a warp, or the whole CTA.
template <class Monoid, int kThreads>
CUTLASS_OPS_DEVICE float reduce_threads(float value) {
  if constexpr (kThreads <= 32) {
    return epilogue::warp_reduce<Monoid, kThreads>(value);
  } else {
    constexpr int kWarps = kThreads / 32;
    __shared__ float partials[kWarps];
    value = epilogue::warp_reduce<Monoid>(value);
    __syncthreads();  // the reduction before this one has been read
    if (threadIdx.x % 32 == 0) {
      partials[threadIdx.x / 32] = value;
    }
    __syncthreads();
    int const lane = threadIdx.x % 32;
    return epilogue::warp_reduce<Monoid>(lane < kWarps ? partials[lane] : Monoid::identity());
  }
}

/// A row lives in the registers of kThreads threads, kFragments fragments of four columns each:
/// read once, written once.
template <int kThreads_, int kFragments_>
struct RegisterRows {
  static constexpr int kThreads = kThreads_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kMaxColumns = kThreads * kFragments * 4;
  static constexpr int kCtaThreads =
      kThreads <= 32 ? 128 : kThreads;  ///< reduce_threads wants a CTA or part of a warp
  static constexpr int kRowsPerCta = kCtaThreads / kThreads;
};

template <class Rows, class Chain>
__global__ void __launch_bounds__(Rows::kCtaThreads) row_softmax(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  int const thread = threadIdx.x % Rows::kThreads;
  std::int64_t const stride = std::int64_t{gridDim.x} * Rows::kRowsPerCta;
  // Every thread runs every iteration, rows beyond the last included: the reductions are
  // collective.
  for (std::int64_t first = std::int64_t{blockIdx.x} * Rows::kRowsPerCta; first < params.rows;
       first += stride) {
    std::int64_t const row = first + threadIdx.x / Rows::kThreads;
    int const columns = row < params.rows ? params.columns : 0;
    epilogue::Fragment<4> z[Rows::kFragments];
    float largest = FloatMax::identity();
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Rows::kFragments; ++i) {
      int const column = (i * Rows::kThreads + thread) * 4;
      if (column < columns) {
        z[i] = params.chain.template evaluate<4>(params.source, int(row), column);
      }
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        z[i][j] = column + j < columns ? z[i][j] : -INFINITY;
        largest = fmaxf(largest, z[i][j]);
      }
    }
    largest = reduce_threads<FloatMax, Rows::kThreads>(largest);
    float sum = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Rows::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        // Beyond the last column it is exp(-inf - largest): 0, or NaN in a row that is NaN all
        // over.
        z[i][j] = expf(z[i][j] - largest);
        sum += z[i][j];
      }
    }
    sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
    float const scale = 1.0f / sum;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Rows::kFragments; ++i) {
      int const column = (i * Rows::kThreads + thread) * 4;
      if (column < columns) {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < 4; ++j) {
          z[i][j] *= scale;
        }
        epilogue::store_columns<4>(params.out + row * params.columns + column, z[i],
                                   columns - column, params.vectorized);
      }
    }
  }
}

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

/// Rows too long for registers: one CTA per row, two passes over the source (the second mostly from
/// L2).
template <class Chain>
__global__ void __launch_bounds__(StreamingRows::kThreads) row_softmax_streaming(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  constexpr int kThreads = StreamingRows::kThreads;
  for (std::int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    OnlineSum online;
    CUTLASS_OPS_UNROLL_BY(4)
    for (int column = threadIdx.x * 4; column < params.columns; column += kThreads * 4) {
      auto const z = params.chain.template evaluate<4>(params.source, int(row), column);
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
      auto z = params.chain.template evaluate<4>(params.source, int(row), column);
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        z[j] = expf(z[j] - largest) * scale;
      }
      epilogue::store_columns<4>(params.out + row * params.columns + column, z,
                                 params.columns - column, params.vectorized);
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
