// The repair of refine_nonfinite.h for what is no reduction: elements of a matrix that depend on a
// row of x or W of which there are no halves.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/kernel/refine_nonfinite.h"

namespace cutlass_ops {
namespace kernel {

template <class Chain, class Sink>
struct RepairRowsParams {
  gemm::Problem problem;
  Chain chain;
  Sink sink;  ///< where the results are
  int window;
  int output_columns;
  HalvesSuspects halves;
};

/// One CTA per row, in a grid-stride loop; almost every one ends at the first test.
template <class Chain, class Sink>
__global__ void __launch_bounds__(RefineNonfiniteConfig::kThreads) repair_rows(
    __grid_constant__ RepairRowsParams<Chain, Sink> const params) {
  constexpr int kWarps = RefineNonfiniteConfig::kThreads / 32;
  constexpr int kWidth = epilogue::fragment_width<Chain>();
  wait_for_predecessor();
  release_successor();
  bool const weight_finite = !params.halves.any_of_weight();
  int const warp = threadIdx.x / 32;
  for (std::int64_t row = blockIdx.x; row < params.problem.m; row += gridDim.x) {
    bool const x_finite = params.halves.x.is_finite(int(row));
    if (x_finite && weight_finite) {
      continue;
    }
    for (int column = warp * kWidth; column < params.output_columns; column += kWarps * kWidth) {
      bool wanted = !x_finite;
      int const end = min(params.problem.n, (column + kWidth) * params.window);
      for (int i = column * params.window; i < end && !wanted; ++i) {
        wanted = !params.halves.weight.is_finite(i);
      }
      if (wanted) {
        auto const y =
            params.chain.template evaluate<kWidth>(DotSource{params.problem}, int(row), column);
        if (threadIdx.x % 32 == 0) {
          typename Sink::State state;
          params.sink.visit(state, y, int(row), column, params.output_columns - column);
        }
      }
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
