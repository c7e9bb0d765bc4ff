// A row cut at the 16-byte boundaries of its memory, which with an odd number of columns lie at
// another column in every row.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// The body of whole fragments, the first of which is aligned, has edges of up to three columns on
/// both sides. Neither needs a column that is not the row's.
struct RowCut {
  static constexpr int kWidth = 4;
  static constexpr int kMaxEdges = 2 * (kWidth - 1);

  int head;   ///< columns before the body
  int body;   ///< columns of the body
  int edges;  ///< columns before and behind it

  CUTLASS_OPS_HOST_DEVICE static RowCut make(float const* first, int columns) {
    int const place = int(reinterpret_cast<std::uintptr_t>(first) / sizeof(float) % kWidth);
    int const to_boundary = -place & (kWidth - 1);
    int const head = to_boundary < columns ? to_boundary : columns;
    int const body = (columns - head) & -kWidth;
    return {head, body, columns - body};
  }

  /// The column of edge i < edges: those of the head first.
  CUTLASS_OPS_HOST_DEVICE int edge_column(int i) const { return i < head ? i : i + body; }

  /// Columns of the body in each of `parts` parts; the last ones may get less, or nothing.
  CUTLASS_OPS_HOST_DEVICE int part(int parts) const {
    return (body + parts * kWidth - 1) / (parts * kWidth) * kWidth;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
