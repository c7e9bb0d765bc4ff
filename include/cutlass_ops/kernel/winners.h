// What the kernels that train a row maximum read and write. The host fills these in.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

struct RowArgmaxParams {
  float const* h;           ///< [rows, columns]
  std::int64_t row_stride;  ///< elements
  int rows;
  int columns;
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
  Winners winners;
  float const* weight;         ///< [windows, columns]
  std::int64_t weight_stride;  ///< elements
  float* out;                  ///< [rows, columns], contiguous
  int columns;
  int column_tiles;
};

/// The gradient of the weight, or its parts: sums of rows of x by window.
struct ScatterParams {
  Winners winners;
  float const* x;         ///< [rows, columns]
  std::int64_t x_stride;  ///< elements
  int columns;
  int column_tiles;
  int windows;
  int slices;      ///< shares of the rows, each with sums of its own
  int slice_rows;  ///< of each but the last
};

struct SpreadTarget {
  float* weight;    ///< [weight_rows, columns], contiguous, or nullptr
  float* bias;      ///< [weight_rows], or nullptr
  int weight_rows;  ///< windows * kernel_size and a remainder, which gets zeros
  int kernel_size;
};

}  // namespace kernel
}  // namespace cutlass_ops
