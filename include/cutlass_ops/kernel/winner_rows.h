// The gradient of x, where one output per row of a linear layer has a gradient: a row of the weight
// each.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/kernel/winners.h"

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

}  // namespace kernel
}  // namespace cutlass_ops
