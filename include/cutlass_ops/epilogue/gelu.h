// Steps: GELU, x * Phi(x), after Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)",
// arXiv:1606.08415.
#pragma once

#include <cmath>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

/// The erf form, written as x/2 * erfc(-x / sqrt 2): 1 + erf cancels for x < 0 and is 0 from about
/// -6 on, erfc keeps the relative error below 2e-5 down to x = -10. NaN -> NaN, +inf -> +inf, -inf
/// -> NaN.
struct Gelu {
  static Gelu make(Reader&, int) { return {}; }

  CUTLASS_OPS_HOST_DEVICE static float apply(float x) {
    constexpr float kSqrtHalf = 0.70710678118654752f;
    return 0.5f * x * erfcf(-kSqrtHalf * x);
  }

  /// Phi(x) + x phi(x). At NaN and +-inf it is NaN.
  CUTLASS_OPS_HOST_DEVICE static float derivative(float x) {
    constexpr float kSqrtHalf = 0.70710678118654752f;
    constexpr float kDensityOfZero = 0.39894228040143268f;
    return 0.5f * erfcf(-kSqrtHalf * x) + x * (kDensityOfZero * expf(-0.5f * x * x));
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [](float x) { return apply(x); });
  }
};

/// The tanh form, x/2 * (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 +
/// exp(-2u)), which does not cancel for x < 0. The same values at NaN and +-inf as the erf form.
struct GeluTanh {
  static GeluTanh make(Reader&, int) { return {}; }

  CUTLASS_OPS_HOST_DEVICE static float apply(float x) {
    constexpr float kMinusTwoSqrtTwoOverPi = -1.5957691216057308f;
    float const u = kMinusTwoSqrtTwoOverPi * (x + 0.044715f * x * x * x);
    return x / (1.0f + expf(u));
  }

  /// s + x s (1 - s) v' with s = 1 / (1 + exp(-v)) and v = 2u. At NaN and +-inf it is NaN.
  CUTLASS_OPS_HOST_DEVICE static float derivative(float x) {
    constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
    // Saturated long before 40; the cube would overflow later, and 0 times that is NaN.
    float const c = x > 40.0f ? 40.0f : x < -40.0f ? -40.0f : x;
    float const v = kTwoSqrtTwoOverPi * (c + 0.044715f * c * c * c);
    float const slope = kTwoSqrtTwoOverPi * (1.0f + 3.0f * 0.044715f * c * c);
    float const e = expf(-fabsf(v));
    float const larger = 1.0f / (1.0f + e);  // s for x > 0, 1 - s for x < 0
    float const smaller = e * larger;
    return (v < 0.0f ? smaller : larger) + x * (smaller * larger * slope);
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [](float x) { return apply(x); });
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
