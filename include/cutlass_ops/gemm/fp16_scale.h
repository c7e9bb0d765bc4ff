// The power of two under which a row is split into fp16 halves.
#pragma once

#include <cmath>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// The scale brings the row's largest magnitude into [2^14, 2^15), the highest binade of fp16 from
/// which no rounding overflows. Two factors, for a row of denormals wants 2^163.
struct Fp16Scale {
  float first, second;

  /// For a row whose largest magnitude has this exponent.
  CUTLASS_OPS_HOST_DEVICE static Fp16Scale of_exponent(int largest) {
    int const exponent = 14 - largest;
    int const half = exponent / 2;
    return {ldexpf(1.0f, half), ldexpf(1.0f, exponent - half)};
  }

  /// For a row whose largest magnitude is this; 1 for a row of zeros.
  CUTLASS_OPS_HOST_DEVICE static Fp16Scale of(float largest) {
    return of_exponent(largest > 0.0f ? ilogbf(largest) : 14);
  }

  /// What a row gets that has no halves: NaN, as all that comes of it would be if it holds a NaN.
  CUTLASS_OPS_HOST_DEVICE static Fp16Scale none(bool has_nan) {
    return {NAN, has_nan ? 0.0f : 1.0f};
  }

  CUTLASS_OPS_HOST_DEVICE bool is_finite() const { return first == first; }

  /// Infinities without NaN: what comes of them may be infinite, too.
  CUTLASS_OPS_HOST_DEVICE bool needs_repair() const { return !is_finite() && second != 0.0f; }

  /// With a factor of its own, which times the value may lie outside of float's range.
  CUTLASS_OPS_HOST_DEVICE float apply(float value, float factor = 1.0f) const {
    return value * first * factor * second;
  }

  /// The scale that takes it back.
  CUTLASS_OPS_HOST_DEVICE Fp16Scale inverse() const { return {1.0f / first, 1.0f / second}; }
};

/// Takes back the scales of a row of x and of one of W, so that a result in float's range stays
/// there on the way: what is large meets the smaller of the second factors first, what is small the
/// larger. One by one: their product may be infinite, and 0 is to stay 0.
CUTLASS_OPS_HOST_DEVICE float scale_back(float z, Fp16Scale x, Fp16Scale w) {
  float const half = z * x.first * w.first;
  float const small = fminf(x.second, w.second);
  float const large = fmaxf(x.second, w.second);
  bool const is_large = fabsf(half) >= 1.0f;
  return half * (is_large ? small : large) * (is_large ? large : small);
}

/// Those of the two rows of x that a lane has accumulators of.
struct RowScales {
  Fp16Scale of[2];
};

}  // namespace gemm
}  // namespace cutlass_ops
