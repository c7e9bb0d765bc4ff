// What the gradients of a row maximum take from the rows one by one: the gradient of x, a row of
// the weight each, and beside it the sums of runs, which the gradient of the weight is made of. In
// one launch, since either leaves bandwidth idle: few CTAs sum runs, and wait for memory most of
// the time.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/winner_runs.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/kernel/winners.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

struct GatherConfig {
  static constexpr int kRows = 4;  ///< of a CTA, all in flight: registers leave but four CTAs an SM
};

/// out[i] = coefficient(i) * weight[winners[i]]: of kRows rows, one tile of columns.
template <int kVector>
CUTLASS_OPS_DEVICE void gather_winners(Winners const& winners, GatherParams const& params,
                                       int item) {
  constexpr int kRows = GatherConfig::kRows;
  int const tile = item % params.column_tiles;
  std::int64_t const first = std::int64_t{item / params.column_tiles} * kRows;
  int const column = (tile * WinnerGradientConfig::kThreads + int(threadIdx.x)) * kVector;
  if (column >= params.columns) {
    return;
  }
  float coefficient[kRows];
  float const* from[kRows];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kRows; ++i) {
    std::int64_t const row = min(first + i, std::int64_t{winners.rows} - 1);
    coefficient[i] = winners.coefficient(row);
    from[i] = params.weight + winners.winners[row] * params.weight_stride + column;
  }
  epilogue::Fragment<kVector> w[kRows];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kRows; ++i) {
    w[i] = epilogue::load_columns<kVector>(from[i], kVector, true);
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (first + i < winners.rows) {
      auto const y = epilogue::map(w[i], [&](float value) { return coefficient[i] * value; });
      epilogue::store_columns<kVector>(params.out + (first + i) * params.columns + column, y,
                                       kVector, true);
    }
  }
}

template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads, 4) sum_and_gather(
    __grid_constant__ WinnerRowParams const params) {
  wait_for_predecessor();
  release_successor();
  int const item = int(blockIdx.x);
  if (item < params.run_ctas) {
    sum_runs<kVector>(params.winners, params.runs, item);
  } else {
    gather_winners<kVector>(params.winners, params.gather, item - params.run_ctas);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
