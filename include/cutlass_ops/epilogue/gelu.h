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

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [](float x) { return apply(x); });
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
