// Step: GELU for the softmax that follows at once, and for nothing else.
#pragma once

#include <cmath>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

/// 2^x; on the GPU the hardware's approximation: relative error up to 2^-22, denormal results 0.
CUTLASS_OPS_HOST_DEVICE float exp2_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/// The erf form as max(x, 0) - t 2^P(t), t = |x|, with P near log2 Phi(-t): 13 instructions where
/// Gelu takes some 50, which leave no issue slots to read at the speed of memory.
///
/// The *absolute* error is below 1.3e-7 max(1, |x|), most of it rounding, and exp(gelu(x) - max)
/// sees no more than that. The relative error is small for x > 0 alone: at -5.5 all digits are
/// lost. So nothing whose result is GELU itself, or its maximum, may use it: those take Gelu.
///
/// The coefficients are those of scripts/fit_softmax_gelu.py, a weighted minimax fit on [0, 6] with
/// P(0) = -1: 9e-9 off in t 2^P(t). Two terms more make that 2e-10, and the rounded result no
/// better. P falls on beyond 6, to -inf, where t 2^P(t) is 0. NaN -> NaN, +inf -> +inf, -inf -> NaN
/// as with Gelu.
struct SoftmaxGelu {
  static SoftmaxGelu make(Reader&, int) { return {}; }

  CUTLASS_OPS_HOST_DEVICE static float apply(float x) {
    float const t = fabsf(x);
    float p = -1.90206424e-06f;
    p = fmaf(p, t, 2.8056922e-05f);
    p = fmaf(p, t, -0.00013147312f);
    p = fmaf(p, t, -0.000272076024f);
    p = fmaf(p, t, 0.00724542188f);
    p = fmaf(p, t, -0.0526276119f);
    p = fmaf(p, t, -0.459162146f);
    p = fmaf(p, t, -1.15111101f);
    p = fmaf(p, t, -1.0f);
    float const y = fmaf(-t, exp2_approximate(p), fmaxf(x, 0.0f));
    return x == INFINITY ? x : y;  // inf * 0 is the NaN that -inf is to give, and +inf is not
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [](float x) { return apply(x); });
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
