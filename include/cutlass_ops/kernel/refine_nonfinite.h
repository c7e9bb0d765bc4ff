// Repairs what folding a weight, or splitting operands into halves, does to infinite inputs.
//
// Folding: mean_j(inf * w_j) is NaN where the weights of a window differ in sign, but inf times
// their mean is +-inf. Only a row whose result is infinite can be wrong: a folded -inf is NaN after
// GELU either way, and a folded NaN implies a true NaN. Such rows are rare, so this kernel looks at
// the results, and recomputes only rows where x itself holds an infinity.
//
// Halves: there are none of a row with an infinity. All that depends on one is NaN, and computed
// again, from the operands themselves; a row with a NaN is right as it is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/kernel/dot_source.h"
#include "cutlass_ops/kernel/missing_halves.h"

namespace cutlass_ops {
namespace kernel {

struct RefineNonfiniteConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;

  /// Rows that a CTA asks about at a time. Many, for there is next to nothing to do (8192 CTAs took
  /// 15 us to ask about 8 each), but not so many that few CTAs would repair all that are wrong.
  static int rows_per_cta(int rows) { return std::clamp(rows / 1024, 8, kThreads); }
};

template <class Chain>
struct RefineNonfiniteParams {
  gemm::Problem problem;
  Chain chain;  ///< of the unfolded description
  int output_columns;
  float* out;  ///< [m], results of the folded path, repaired in place
  MissingHalves missing;

  /// Whether the row is to be looked at, or, where operands were split, computed again.
  CUTLASS_OPS_DEVICE bool suspects(int row) const {
    return missing.were_split() ? missing.some_of_x(row) : bool(isinf(out[row]));
  }

  /// Whether every row is, as far as this thread of the CTA looks.
  CUTLASS_OPS_DEVICE bool some_of_weight() const {
    return missing.were_split() && missing.some_of_weight();
  }
};

/// One row, by the whole CTA. Most end at their first NaN, which every monoid keeps.
template <class Chain, class Monoid>
CUTLASS_OPS_DEVICE void refine_row(RefineNonfiniteParams<Chain> const& params, int row) {
  constexpr int kWarps = RefineNonfiniteConfig::kWarps;
  constexpr int kWidth = epilogue::fragment_width<Chain>();
  __shared__ float partials[kWarps];
  int const warp = threadIdx.x / 32;
  float value = Monoid::identity();
  bool done = false;
  for (int first = 0; first < params.output_columns && !done; first += kWarps * kWidth) {
    int const column = first + warp * kWidth;
    if (column < params.output_columns) {
      auto const y = params.chain.template evaluate<kWidth>(DotSource{params.problem}, row, column);
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

/// `count` rows from `begin` on, by the whole CTA, which sees their results: by the first test
/// almost always none is wrong.
template <class Chain, class Monoid>
CUTLASS_OPS_DEVICE void refine_rows(RefineNonfiniteParams<Chain> const& params, std::int64_t begin,
                                    int count, bool some_of_weight) {
  gemm::Problem const& problem = params.problem;
  std::int64_t const mine = begin + threadIdx.x;
  bool const suspect = threadIdx.x < count && mine < problem.m && params.suspects(int(mine));
  if (!__syncthreads_or(some_of_weight || suspect)) {
    return;
  }
  bool const every_row = bool(__syncthreads_or(some_of_weight));
  for (std::int64_t row = begin; row < begin + count && row < problem.m; ++row) {
    bool wanted = every_row || (params.missing.were_split() && params.suspects(int(row)));
    if (!wanted && params.suspects(int(row))) {
      for (int k = int(threadIdx.x); k < problem.k; k += RefineNonfiniteConfig::kThreads) {
        wanted |= bool(isinf(problem.x[row * problem.x_stride + k]));
      }
    }
    // Also the barrier between reading out[row] above and writing it below.
    if (__syncthreads_or(wanted)) {
      refine_row<Chain, Monoid>(params, int(row));
    }
  }
}

/// Groups of rows in a grid-stride loop.
template <class Chain, class Monoid>
__global__ void __launch_bounds__(RefineNonfiniteConfig::kThreads) refine_nonfinite(
    __grid_constant__ RefineNonfiniteParams<Chain> const params, int rows_per_cta) {
  wait_for_predecessor();
  release_successor();
  bool const some_of_weight = params.some_of_weight();
  // 64 bits: a step of many CTAs can pass the limit of rows, 2^31 - 4097.
  for (std::int64_t begin = std::int64_t{blockIdx.x} * rows_per_cta; begin < params.problem.m;
       begin += std::int64_t{gridDim.x} * rows_per_cta) {
    refine_rows<Chain, Monoid>(params, begin, rows_per_cta, some_of_weight);
  }
}

/// The repair as the end of the kernel that makes the results, whose CTAs have as many threads: a
/// launch less. Not where a kernel wants the registers for more CTAs (docs/performance.md).
template <class Chain, class Monoid>
struct RefineNonfinite {
  RefineNonfiniteParams<Chain> params;
  bool wanted;

  /// By the whole CTA, which has written these results.
  CUTLASS_OPS_DEVICE void refine(std::int64_t begin, int count) const {
    if (wanted) {
      __syncthreads();
      refine_rows<Chain, Monoid>(params, begin, count, params.some_of_weight());
    }
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
