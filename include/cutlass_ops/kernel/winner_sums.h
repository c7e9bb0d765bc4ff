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
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kUnroll = 8;  ///< rows whose loads are in flight together
};

/// Rows to add up, in shared memory.
struct TermList {
  static constexpr int kRows = 2 * WinnerGradientConfig::kThreads;

  int source[kRows];
  float factor[kRows];
};

/// Of a list whose rows begin at `column`. They are added up kUnroll at a time, so that chains of
/// additions stay shorter than the rows are many.
template <int kVector>
struct TermSum {
  epilogue::Fragment<kVector> columns{};

  CUTLASS_OPS_DEVICE void add(TermList const& list, int first, int end, TermSource const& source,
                              int column) {
    constexpr int kUnroll = WinnerGradientConfig::kUnroll;
    if (column >= source.columns) {
      return;
    }
    for (; first + kUnroll <= end; first += kUnroll) {
      add_rows<kUnroll>(list, first, source, column);
    }
    add_rest<kUnroll / 2>(list, first, end - first, source, column);
  }

 private:
  CUTLASS_OPS_DEVICE static float const* row(TermSource const& source, int index) {
    return index >= 0 ? source.x + index * source.x_stride
                      : source.sums + std::int64_t{~index} * source.columns;
  }

  /// All loads before the first is waited for.
  template <int kRows>
  CUTLASS_OPS_DEVICE void add_rows(TermList const& list, int first, TermSource const& source,
                                   int column) {
    epilogue::Fragment<kVector> values[kRows];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      values[i] = load_once<kVector>(row(source, list.source[first + i]) + column);
    }
    epilogue::Fragment<kVector> sum{};
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kVector; ++j) {
        sum[j] = fmaf(list.factor[first + i], values[i][j], sum[j]);
      }
    }
    columns += sum;
  }

  /// Fewer than 2 * kRows, in batches of powers of two.
  template <int kRows>
  CUTLASS_OPS_DEVICE void add_rest(TermList const& list, int first, int rows,
                                   TermSource const& source, int column) {
    if (rows & kRows) {
      add_rows<kRows>(list, first, source, column);
      first += kRows;
    }
    if constexpr (kRows > 1) {
      add_rest<kRows / 2>(list, first, rows, source, column);
    }
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
