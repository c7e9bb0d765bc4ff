// Which results of an fp16x3 GEMM depend on a row of x or W of which there are no halves.
#pragma once

#include <cstdint>

#include "cutlass_ops/gemm/fp16_pairs.h"

namespace cutlass_ops {
namespace kernel {

struct MissingHalves {
  gemm::Fp16Scale const* x_scales;  ///< [shares, rows]: of all of k at once, or of shares of it
  int rows;
  int shares;
  gemm::Fp16Pairs weight;   ///< without halves at all where no operand was split
  int const* column_flags;  ///< of each column tile: whether there are such rows of the weight
  int column_tiles;

  CUTLASS_OPS_DEVICE bool were_split() const { return weight.halves != nullptr; }

  CUTLASS_OPS_DEVICE bool some_of_x(int row) const {
    bool some = false;
    CUTLASS_OPS_UNROLL_BY(1)
    for (int share = 0; share < shares; ++share) {
      some |= x_scales[std::int64_t{share} * rows + row].needs_repair();
    }
    return some;
  }

  /// Of the weight, as far as this thread of the CTA looks.
  CUTLASS_OPS_DEVICE bool some_of_weight() const {
    bool some = false;
    for (int tile = int(threadIdx.x); tile < column_tiles; tile += int(blockDim.x)) {
      some |= column_flags[tile] != 0;
    }
    return some;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
