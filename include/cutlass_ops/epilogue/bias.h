// Step: z + bias[column].
#pragma once

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct Bias {
  float const* bias;  ///< [columns], or nullptr: the step is then the identity
  int columns;
  bool vectorized;

  static Bias make(Reader& reader, int columns) {
    return {reader.bias(), columns, is_aligned(reader.bias())};
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int column) const {
    if (bias == nullptr) {
      return z;
    }
    // A fragment may start beyond the last column, in a tile that sticks out: valid <= 0 reads
    // nothing.
    z += load_columns<kWidth>(bias + column, columns - column, vectorized);
    return z;
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
