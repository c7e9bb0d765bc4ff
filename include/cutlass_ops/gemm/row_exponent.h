// The power of two under which a row is split into fp16 halves while it is read, a tile of k at a
// time, by one that has not seen the rest.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/fp16_scale.h"

namespace cutlass_ops {
namespace gemm {

/// 0 for exponents below -126. At most 127.
CUTLASS_OPS_DEVICE float power_of_two(int exponent) {
  return __uint_as_float(unsigned(max(exponent, -127) + 127) << 23);
}

/// The exponent, biased by 127, of the largest magnitude of a row so far, which only rises. The
/// scale brings it into [2^14, 2^15), as Fp16Scale does; what has been summed is lowered when it
/// rises. So a tile's split is at least as fine as the whole row's would be, and sums stay far from
/// the ends of float's range, as they would not in units of x.
struct RowExponent {
  static constexpr int kUnit = 127 + 14;  ///< of which the scale is 1
  /// Of zeros, and of what is less than that. The scale is 2^127, the last place of a denormal then
  /// 2^-22: fp16 holds it, and a greater scale would win nothing.
  static constexpr int kLeast = kUnit - 127;
  static constexpr int kLeastFactor = 40;  ///< binades by which columns may lower a row
  static constexpr int kInfinite = 1024;   ///< beyond every finite row
  static constexpr int kNan = kInfinite + 1;

  int value;

  /// Of the largest magnitude, or an infinity, or NaN.
  CUTLASS_OPS_DEVICE static int of(float largest) {
    unsigned const bits = __float_as_uint(largest);
    int const finite = max(kLeast, int(bits >> 23));
    int const other = bits == 0x7f800000u ? kInfinite : kNan;
    return bits < 0x7f800000u ? finite : other;
  }

  /// What a sum under the scale before is to be multiplied by. Beyond 2^-126 it is nothing beside
  /// the row's largest element.
  CUTLASS_OPS_DEVICE float raise(int exponent) {
    int const before = value;
    value = max(before, exponent);
    return power_of_two(before - value);
  }

  /// The exponent of the scale. That of a row which is not finite matters not: its halves are an
  /// infinity and NaN, or both NaN, and so all that comes of them is NaN.
  CUTLASS_OPS_DEVICE int scale_exponent() const {
    constexpr int kMost = 255 + kLeastFactor;
    return kUnit - min(value, kMost);
  }

  /// The scale that takes it back, or what a row has that is not finite.
  CUTLASS_OPS_DEVICE Fp16Scale back() const {
    int const exponent = value - kUnit;
    int const half = exponent >> 1;
    return value < kInfinite ? Fp16Scale{power_of_two(half), power_of_two(exponent - half)}
                             : Fp16Scale::none(value == kNan);
  }
};

/// Over the four lanes that share a row.
template <class Combine, class Value>
CUTLASS_OPS_DEVICE Value reduce_lanes_of_row(Value value, Combine combine) {
  value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return combine(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

}  // namespace gemm
}  // namespace cutlass_ops
