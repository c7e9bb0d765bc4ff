// Source: a matrix in memory, or the sum of the partial matrices that split-K left there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct MatrixSource {
  float const* data;  ///< [splits, rows, columns], unit column stride
  int columns;
  std::int64_t row_stride;    ///< elements
  int splits;                 ///< partial matrices, added in their order
  std::int64_t split_stride;  ///< elements
  bool vectorized;

  static MatrixSource make(float const* data, int columns, std::int64_t row_stride, int splits = 1,
                           std::int64_t split_stride = 0) {
    bool const rows_aligned = row_stride % 4 == 0 && split_stride % 4 == 0;
    return {data, columns, row_stride, splits, split_stride, rows_aligned && is_aligned(data)};
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> load(int row, int column) const {
    float const* const pointer = data + row * row_stride + column;
    int const valid = columns - column;
    if (valid >= kWidth && (kWidth == 1 || vectorized)) {
      return sum<kWidth>(pointer, [](float const* place) {
        return *reinterpret_cast<Fragment<kWidth> const*>(place);
      });
    }
    return sum<kWidth>(
        pointer, [&](float const* place) { return load_columns<kWidth>(place, valid, false); });
  }

 private:
  /// `read` at the same place of every partial matrix. Without a branch in it, loads are issued
  /// before the first is waited for.
  template <int kWidth, class Read>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> sum(float const* pointer, Read read) const {
    Fragment<kWidth> total = read(pointer);
    CUTLASS_OPS_UNROLL_BY(8)
    for (int split = 1; split < splits; ++split) {
      total += read(pointer + split * split_stride);
    }
    return total;
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
