// Step: the mean of each window of k neighbouring columns (kernel and stride k). The remainder is
// dropped: a chain evaluates floor(columns / k) outputs and so never reads it.
#pragma once

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct AvgPool {
  static constexpr bool kWindowed = true;

  int kernel_size;

  static AvgPool make(Reader& reader, int) {
    int const kernel_size = static_cast<int>(reader.next());
    return {kernel_size < 1 ? 1 : kernel_size};
  }

  int window() const { return kernel_size; }

  template <int kWidth, class Source>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> pull(Source const& source, int row, int column) const {
    if (kernel_size == 1) {  // an operand that was folded beforehand
      return source.template load<kWidth>(row, column);
    }
    Fragment<kWidth> means;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      means[i] = mean(source, row, (column + i) * kernel_size);
    }
    return means;
  }

 private:
  template <class Source>
  CUTLASS_OPS_HOST_DEVICE float mean(Source const& source, int row, int first) const {
    float sum = 0.0f;
    if (kernel_size % 4 == 0) {
      for (int i = 0; i < kernel_size; i += 4) {
        Fragment<4> const z = source.template load<4>(row, first + i);
        sum += (z[0] + z[1]) + (z[2] + z[3]);
      }
    } else {
      for (int i = 0; i < kernel_size; ++i) {
        sum += source.template load<1>(row, first + i)[0];
      }
    }
    return sum / static_cast<float>(kernel_size);
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
