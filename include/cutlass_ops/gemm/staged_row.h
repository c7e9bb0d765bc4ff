// What the adapters of all mainloops read: a row of accumulators in shared memory.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// Source over a staged row; columns count within the linear's output.
struct StagedRow {
  float const* row;  ///< shared memory, first column of the tile
  int first_column;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int, int column) const {
    // A tile that was moved back from an edge may begin at any column.
    int const offset = column - first_column;
    return epilogue::load_columns<kWidth>(row + offset, kWidth, offset % 4 == 0);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
