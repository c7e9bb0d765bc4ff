// Which results of an fp16x3 GEMM depend on a row of x or W of which there are no halves.
#pragma once

#include "cutlass_ops/gemm/fp16_pairs.h"

namespace cutlass_ops {
namespace kernel {

struct MissingHalves {
  gemm::Fp16Pairs x;  ///< without halves at all where no operand was split
  gemm::Fp16Pairs weight;
  int const* column_flags;  ///< of each column tile: whether there are such rows of the weight
  int column_tiles;

  CUTLASS_OPS_DEVICE bool were_split() const { return x.halves != nullptr; }

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
