// The repair of refine_nonfinite.h for what is no reduction: elements of a matrix that depend on a
// row of x or W of which there are no halves.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/kernel/dot_source.h"
#include "cutlass_ops/kernel/missing_halves.h"
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
  MissingHalves missing;
  int rows_per_cta;
};

/// One row, by the whole CTA.
template <class Chain, class Sink>
CUTLASS_OPS_DEVICE void repair_row(RepairRowsParams<Chain, Sink> const& params, int row) {
  constexpr int kWidth = epilogue::fragment_width<Chain>();
  bool const every_column = params.missing.some_of_x(row);
  int const warp = threadIdx.x / 32;
  for (int column = warp * kWidth; column < params.output_columns;
       column += RefineNonfiniteConfig::kWarps * kWidth) {
    bool wanted = every_column;
    int const end = min(params.problem.n, (column + kWidth) * params.window);
    for (int i = column * params.window; i < end && !wanted; ++i) {
      wanted = params.missing.weight.needs_repair(i);
    }
    if (wanted) {
      auto const y = params.chain.template evaluate<kWidth>(DotSource{params.problem}, row, column);
      if (threadIdx.x % 32 == 0) {
        typename Sink::State state;
        params.sink.visit(state, y, row, column, params.output_columns - column);
      }
    }
  }
}

/// Groups of rows in a grid-stride loop; almost every group ends at the first test.
template <class Chain, class Sink>
__global__ void __launch_bounds__(RefineNonfiniteConfig::kThreads) repair_rows(
    __grid_constant__ RepairRowsParams<Chain, Sink> const params) {
  int const rows_per_cta = params.rows_per_cta;
  wait_for_predecessor();
  release_successor();
  int const rows = params.problem.m;
  bool const some_of_weight = params.missing.some_of_weight();
  for (std::int64_t begin = std::int64_t{blockIdx.x} * rows_per_cta; begin < rows;
       begin += std::int64_t{gridDim.x} * rows_per_cta) {
    std::int64_t const mine = begin + threadIdx.x;
    bool const suspect =
        threadIdx.x < rows_per_cta && mine < rows && params.missing.some_of_x(int(mine));
    if (__syncthreads_or(some_of_weight || suspect)) {
      for (std::int64_t row = begin; row < begin + rows_per_cta && row < rows; ++row) {
        repair_row(params, int(row));
      }
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
