// Repairs what folding a weight does to infinite inputs.
//
// mean_j(inf * w_j) is NaN where the weights of a window differ in sign, but inf * mean_j(w_j) is
// +-inf. Only a row whose result is infinite can be wrong: a folded -inf is NaN after GELU either
// way, and a folded NaN implies a true NaN. Such rows are rare, so this kernel looks at the
// results, and recomputes only rows where x itself holds an infinity.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"
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
  float* out;  ///< [m], results of the folded path, repaired in place
};

/// Source that computes a pre-activation when it is asked for one: a dot product per column, by one
/// thread.
struct DotSource {
  gemm::Problem problem;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int row, int column) const {
    epilogue::Fragment<kWidth> z;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      float const* x = problem.x + row * problem.x_stride;
      float const* weight = problem.weight + (column + i) * problem.weight_stride;
      float sum = 0.0f;
      for (int k = 0; k < problem.k && column + i < problem.n; ++k) {
        sum = fmaf(x[k], weight[k], sum);
      }
      z[i] = sum;
    }
    return z;
  }
};

/// One CTA per row, in a grid-stride loop; almost every row ends at the first test.
template <class Chain, class Monoid>
__global__ void __launch_bounds__(RefineNonfiniteConfig::kThreads) refine_nonfinite(
    __grid_constant__ RefineNonfiniteParams<Chain> const params) {
  constexpr int kThreads = RefineNonfiniteConfig::kThreads;
  constexpr int kWidth = epilogue::fragment_width<Chain>();
  __shared__ float partials[kThreads / 32];
  gemm::Problem const& problem = params.problem;
  for (int row = blockIdx.x; row < problem.m; row += gridDim.x) {
    if (!isinf(params.out[row])) {
      continue;
    }
    bool infinite_input = false;
    for (int k = threadIdx.x; k < problem.k; k += kThreads) {
      infinite_input |= bool(isinf(problem.x[row * problem.x_stride + k]));
    }
    // Also the barrier between reading out[row] above and writing it below.
    if (!__syncthreads_or(infinite_input)) {
      continue;
    }
    float value = Monoid::identity();
    for (int column = threadIdx.x * kWidth; column < params.output_columns;
         column += kThreads * kWidth) {
      auto const y = params.chain.template evaluate<kWidth>(DotSource{problem}, row, column);
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        value = column + i < params.output_columns ? Monoid::combine(value, y[i]) : value;
      }
    }
    value = epilogue::warp_reduce<Monoid>(value);
    if (threadIdx.x % 32 == 0) {
      partials[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < kThreads / 32; ++warp) {
        value = Monoid::combine(value, partials[warp]);
      }
      params.out[row] = value;
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
