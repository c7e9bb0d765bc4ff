// A warp, or a part of one, takes one slot of a row through chain and sink. Every adapter ends
// here.
#pragma once

#include "cutlass_ops/epilogue/chain.h"

namespace cutlass_ops {
namespace epilogue {

/// Output columns [`begin`, `end`) of `row`, `kWidth` at a time, read from `source` (whose columns
/// are those of the linear). `lane` counts within the kLanes of the row; all of the warp's call
/// together.
template <int kWidth, int kLanes = 32, class Chain, class Sink, class Source>
CUTLASS_OPS_DEVICE void visit_row(Chain const& chain, Sink const& sink, Source const& source,
                                  int row, int begin, int end, int slot, int lane) {
  typename Sink::State state;
  for (int column = begin + lane * kWidth; column < end; column += kLanes * kWidth) {
    sink.visit(state, chain.template evaluate<kWidth>(source, row, column), row, column,
               end - column);
  }
  sink.template finish<kLanes>(state, row, slot, lane);
}

}  // namespace epilogue
}  // namespace cutlass_ops
