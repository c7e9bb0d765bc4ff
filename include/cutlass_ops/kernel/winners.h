// What the kernels that train a row maximum read and write. The host fills these in.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/epilogue/matrix_source.h"

namespace cutlass_ops {
namespace kernel {

/// Of h = source + bias.
struct RowArgmaxParams {
  epilogue::MatrixSource source;
  epilogue::Bias bias;
  int rows;
  float scale;
  float* values;  ///< [rows]: the maximum
  int* winners;   ///< [rows]: the first column that has it
  float* slopes;  ///< [rows]: the derivative of scale * activation at h[row, winner]
};

/// What reaches the winners: row i hands grad[i] * slopes[i] to window winners[i].
struct Winners {
  float const* grad;    ///< [rows]
  int const* winners;   ///< [rows], in 0 .. windows - 1
  float const* slopes;  ///< [rows]
  int rows;

  CUTLASS_OPS_HOST_DEVICE float coefficient(std::int64_t row) const {
    return grad[row] * slopes[row];
  }
};

struct GatherParams {
  float const* weight;         ///< [windows, columns]
  std::int64_t weight_stride;  ///< elements
  float* out;                  ///< [rows, columns], contiguous
  int columns;
  int column_tiles;
};

/// What the gradient of the weight is a sum of, so that no window has many: of a row that is alone
/// with its window among its neighbours, or has few of its kind, x itself times its coefficient; of
/// a run of them, their sum, in the place of the first, and nothing in those of the others.
struct WinnerTerms {
  int* windows;         ///< [rows]; -1 for nothing
  int* sources;         ///< [rows]: a row of x, or, where negative, ~ a row of the sums of runs
  float* factors;       ///< [rows]: of that row
  float* coefficients;  ///< [rows]: their part in the gradient of the bias
};

/// x, and the sums of runs, as terms name them.
struct TermSource {
  float const* x;         ///< [rows, columns]
  std::int64_t x_stride;  ///< elements
  float* sums;            ///< [slices * RunConfig::sums_of(slice_rows), columns]
  int columns;

  CUTLASS_OPS_HOST_DEVICE float const* row(int source) const {
    return source >= 0 ? x + source * x_stride : sums + std::int64_t{~source} * columns;
  }
};

struct RunParams {
  WinnerTerms terms;
  TermSource source;
  int column_tiles;
  int slice_rows;  ///< neighbours among which runs are looked for, up to the threads of a CTA
};

struct ScatterParams {
  WinnerTerms terms;
  TermSource source;
  int column_tiles;
  int shares;         ///< CTAs that write the rows of one window, each having the sum
  int block_windows;  ///< neighbours that have one place in WindowOrder
};

struct SpreadTarget {
  float* weight;    ///< [weight_rows, columns], contiguous, or nullptr
  float* bias;      ///< [weight_rows], or nullptr
  int weight_rows;  ///< windows * kernel_size and a remainder, which gets zeros
  int kernel_size;
};

/// Of the kernel that writes the gradients.
struct WinnerGradientParams {
  Winners winners;
  GatherParams gather;
  ScatterParams scatter;
  SpreadTarget target;
  int gather_ctas;  ///< the first of the grid; the others scatter
  bool after_runs;  ///< the kernel before it is sum_runs, which without rows is not launched
};

/// Rows that are summed at once where they share a window.
struct RunConfig {
  static constexpr int kLeastLength = 4;
  static constexpr int kLeastSlice = 64;

  static constexpr int sums_of(int slice_rows) { return slice_rows / kLeastLength; }

  /// A window has up to rows / slice_rows sums and some rows left: short lists of many rows need
  /// long slices.
  static int slice_rows(int rows) { return rows <= 2048 ? kLeastSlice : rows <= 8192 ? 128 : 256; }

  /// Terms that a window has in so many rows, which are whole slices: rows that make no run, or the
  /// sum of those that do, of each.
  static constexpr int most_terms(int rows) { return rows / kLeastSlice * (kLeastLength - 1); }
};

}  // namespace kernel
}  // namespace cutlass_ops
