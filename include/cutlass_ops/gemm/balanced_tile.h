// A tile of x under the factors of its columns (kernel/column_factors.h), scaled in shared memory
// before it is read as usual. Rare, and so short rather than fast.
#pragma once

#include "cutlass/arch/barrier.h"

#include "cutlass_ops/gemm/float_fragment.h"
#include "cutlass_ops/gemm/row_exponent.h"
#include "cutlass_ops/kernel/column_exponents.h"

namespace cutlass_ops {
namespace gemm {

/// Each thread has the elements that FloatFragment reads, and no other, so that none waits for
/// another.
template <class TileX, int kK>
struct BalancedTile {
  using Places = typename FloatFragment<TileX, kK>::Places;

  float const* factors;  ///< of the tile's columns
  int columns;           ///< of them that there are
  float* tile;
  int thread;

  /// Of a row of zeros.
  static constexpr int kLeast = RowExponent::kLeast - RowExponent::kLeastFactor;

  /// Raises the exponents of both rows, with what that makes of their sums, and scales the
  /// elements. Elements times factors are nowhere formed before the scale, for they may lie outside
  /// of float's range.
  CUTLASS_OPS_DEVICE void scale(RowExponent (&rows)[2], float (&rescale)[2]) const {
    int largest[2] = {kLeast, kLeast};
    visit([&](float const& element, int half, float factor) {
      largest[half] = max(largest[half], exponent_of(element, factor));
    });
    float first[2], second[2];
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const exponent =
          reduce_lanes_of_row(largest[half], [](int a, int b) { return max(a, b); });
      rescale[half] = rows[half].raise(exponent);
      int const scale = rows[half].scale_exponent();
      first[half] = power_of_two(scale >> 1);
      second[half] = power_of_two(scale - (scale >> 1));
    }
    visit([&](float& element, int half, float factor) {
      element = element * first[half] * factor * second[half];
    });
    cutlass::arch::fence_view_async_shared();  // TMA will write there, too
  }

 private:
  CUTLASS_OPS_DEVICE static int exponent_of(float element, float factor) {
    unsigned const bits = __float_as_uint(fabsf(element));
    if (bits >= 0x7f800000u) {
      return bits == 0x7f800000u ? RowExponent::kInfinite : RowExponent::kNan;
    }
    return bits == 0 ? kLeast : ilogbf(element) + 127 + kernel::exponent_of_factor(factor);
  }

  template <class Visit>
  CUTLASS_OPS_DEVICE void visit(Visit visit) const {
    CUTLASS_OPS_UNROLL_BY(1)
    for (int group = 0; group < kK / 8; ++group) {
      int const column = Places::column(thread, group);
      float const factor[2] = {column < columns ? factors[column] : 1.0f,
                               column + 1 < columns ? factors[column + 1] : 1.0f};
      CUTLASS_OPS_UNROLL
      for (int half = 0; half < 2; ++half) {
        float* const pair = tile + Places::offset(thread, group, half);
        visit(pair[0], half, factor[0]);
        visit(pair[1], half, factor[1]);
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
