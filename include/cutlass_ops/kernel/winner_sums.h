// Sums of rows times factors, a vector of columns a thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/fold_rows.h"
#include "cutlass_ops/kernel/winners.h"

namespace cutlass_ops {
namespace kernel {

struct WinnerGradientConfig {
  static constexpr int kThreads = 256;
};

/// Rows to add up, in shared memory.
template <int kRows>
struct TermList {
  float const* row[kRows];
  float factor[kRows];
};

/// Of the rows of a list, the columns from `column` on. They are added up kInFlight at a time, so
/// that chains of additions stay shorter than the rows are many.
template <int kVector, int kInFlight>
struct TermSum {
  epilogue::Fragment<kVector> columns{};

  template <int kRows>
  CUTLASS_OPS_DEVICE void add(TermList<kRows> const& list, int first, int end, int column) {
    CUTLASS_OPS_UNROLL_BY(1)
    for (; first < end; first += kInFlight) {
      add_rows(list, first, end, column);
    }
  }

 private:
  /// kInFlight rows, or those that are left: few, as most lists are, wait once all the same. All
  /// loads that there are registers for are issued before the first is waited for, with no more
  /// than a predicate between them.
  template <int kRows>
  CUTLASS_OPS_DEVICE void add_rows(TermList<kRows> const& list, int first, int end, int column) {
    epilogue::Fragment<kVector> values[kInFlight] = {};
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      float const* const row = list.row[min(first + i, end - 1)] + column;
      if (first + i < end) {
        values[i] = load_once<kVector>(row);
      }
    }
    epilogue::Fragment<kVector> sum{};
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      float const factor = first + i < end ? list.factor[first + i] : 0.0f;
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kVector; ++j) {
        sum[j] = fmaf(factor, values[i][j], sum[j]);
      }
    }
    columns += sum;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
