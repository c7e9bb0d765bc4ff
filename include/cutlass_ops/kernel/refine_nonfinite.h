// Repairs what folding a weight, or splitting operands into halves, does to infinite inputs.
//
// Folding: mean_j(inf * w_j) is NaN where the weights of a window differ in sign, but inf *
// mean_j(w_j) is
// +-inf. Only a row whose result is infinite can be wrong: a folded -inf is NaN after GELU either
// way, and a folded NaN implies a true NaN. Such rows are rare, so this kernel looks at the
// results, and recomputes only rows where x itself holds an infinity.
//
// Halves: there are none of a row with an infinity or NaN. All that depends on one is computed
// again, from the operands themselves.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"

namespace cutlass_ops {
namespace kernel {

struct RefineNonfiniteConfig {
  static constexpr int kThreads = 256;
};

template <class Chain>
struct RefineNonfiniteParams {
  gemm::Problem problem;
  Chain chain;  ///< of the unfolded description
  int output_columns;
  float* out;               ///< [m], results of the folded path, repaired in place
  gemm::Fp16Pairs x_pairs;  ///< without halves where no operand was split
  gemm::Fp16Pairs weight_pairs;

  /// Whether the row is to be looked at, or where x and W were split, computed again.
  CUTLASS_OPS_DEVICE bool suspects(std::int64_t row) const {
    return x_pairs.halves == nullptr ? bool(isinf(out[row]))
                                     : *weight_pairs.flag != 0 || !x_pairs.is_finite(int(row));
  }
};

/// Source that computes a pre-activation when it is asked for one: a dot product per column, by the
/// whole warp. Every lane gets the result.
struct DotSource {
  gemm::Problem problem;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int row, int column) const {
    float const* const x = problem.x + row * problem.x_stride;
    epilogue::Fragment<kWidth> z;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      float sum = 0.0f;
      if (column + i < problem.n) {  // the same in all lanes
        float const* const weight = problem.weight + (column + i) * problem.weight_stride;
        for (int k = threadIdx.x % 32; k < problem.k; k += 32) {
          sum = fmaf(x[k], weight[k], sum);
        }
      }
      z[i] = epilogue::warp_reduce<epilogue::SumMonoid>(sum);
    }
    return z;
  }
};

/// One CTA per row, in a grid-stride loop; almost every row ends at the first test, and most of the
/// others at their first NaN, which every monoid keeps.
template <class Chain, class Monoid>
__global__ void __launch_bounds__(RefineNonfiniteConfig::kThreads) refine_nonfinite(
    __grid_constant__ RefineNonfiniteParams<Chain> const params) {
  constexpr int kThreads = RefineNonfiniteConfig::kThreads;
  constexpr int kWarps = kThreads / 32;
  constexpr int kWidth = epilogue::fragment_width<Chain>();
  __shared__ float partials[kWarps];
  wait_for_predecessor();
  release_successor();
  gemm::Problem const& problem = params.problem;
  int const warp = threadIdx.x / 32;
  // 64 bits: a step of up to 2^20 CTAs can pass the limit of rows, 2^31 - 4097.
  for (std::int64_t row = blockIdx.x; row < problem.m; row += gridDim.x) {
    if (!params.suspects(row)) {
      continue;
    }
    bool infinite_input = params.x_pairs.halves != nullptr;
    for (int k = threadIdx.x; k < problem.k; k += kThreads) {
      infinite_input |= bool(isinf(problem.x[row * problem.x_stride + k]));
    }
    // Also the barrier between reading out[row] above and writing it below.
    if (!__syncthreads_or(infinite_input)) {
      continue;
    }
    float value = Monoid::identity();
    bool done = false;
    for (int first = 0; first < params.output_columns && !done; first += kWarps * kWidth) {
      int const column = first + warp * kWidth;
      if (column < params.output_columns) {
        auto const y = params.chain.template evaluate<kWidth>(DotSource{problem}, int(row), column);
        CUTLASS_OPS_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          value = column + i < params.output_columns ? Monoid::combine(value, y[i]) : value;
        }
      }
      done = __syncthreads_or(isnan(value));
    }
    if (threadIdx.x % 32 == 0) {
      partials[warp] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int other = 1; other < kWarps; ++other) {
        value = Monoid::combine(value, partials[other]);
      }
      params.out[row] = value;
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
