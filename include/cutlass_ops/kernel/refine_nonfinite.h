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

/// Where operands were split, the rows that have no halves.
struct HalvesSuspects {
  gemm::Fp16Pairs x;  ///< without halves where no operand was split
  gemm::Fp16Pairs weight;
  int const* column_flags;  ///< of each column tile: whether there are such rows of the weight
  int column_tiles;

  CUTLASS_OPS_DEVICE bool were_split() const { return x.halves != nullptr; }

  /// By a whole CTA, in each thread.
  CUTLASS_OPS_DEVICE bool any_of_weight() const {
    bool any = false;
    for (int tile = int(threadIdx.x); tile < column_tiles; tile += int(blockDim.x)) {
      any |= column_flags[tile] != 0;
    }
    return bool(__syncthreads_or(any));
  }
};

template <class Chain>
struct RefineNonfiniteParams {
  gemm::Problem problem;
  Chain chain;  ///< of the unfolded description
  int output_columns;
  float* out;  ///< [m], results of the folded path, repaired in place
  HalvesSuspects halves;
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
  bool const split = params.halves.were_split();
  bool const weight_suspect = split && params.halves.any_of_weight();
  int const warp = threadIdx.x / 32;
  // 64 bits: a step of up to 2^20 CTAs can pass the limit of rows, 2^31 - 4097.
  for (std::int64_t row = blockIdx.x; row < problem.m; row += gridDim.x) {
    bool const suspect = split ? weight_suspect || !params.halves.x.is_finite(int(row))
                               : bool(isinf(params.out[row]));
    if (!suspect) {
      continue;
    }
    bool infinite_input = split;
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
