// Sink: writes the matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct Store {
  static constexpr bool kReduces = false;

  float* out;   ///< [rows, columns], row-major and contiguous
  int columns;  ///< output columns
  /// Elements between the partial matrices of split-K; 0 for a final result.
  std::int64_t split_stride;
  bool vectorized;

  /// Nothing to keep between the fragments of a row.
  struct State {};

  /// `slots` is the number of parts that a row is cut into, which matters to reductions alone.
  static Store make(float* out, int columns, int /*slots*/, std::int64_t split_stride = 0) {
    bool const rows_aligned = columns % 4 == 0 && split_stride % 4 == 0;
    return {out, columns, split_stride, rows_aligned && is_aligned(out)};
  }

  /// The sink of one K split.
  CUTLASS_OPS_HOST_DEVICE Store at_split(int split) const {
    return {out + split * split_stride, columns, split_stride, vectorized};
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE void visit(State&, Fragment<kWidth> const& y, int row, int column,
                                     int valid) const {
    store_columns<kWidth>(out + static_cast<std::int64_t>(row) * columns + column, y, valid,
                          vectorized);
  }

#if defined(__CUDACC__)
  template <int kLanes>
  CUTLASS_OPS_DEVICE void finish(State const&, int, int, int) const {}
#endif
};

}  // namespace epilogue
}  // namespace cutlass_ops
