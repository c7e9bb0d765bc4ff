// A custom epilogue in one file: logsumexp over each row of clamp(x Wᵀ + b, low, high).
// examples/custom_epilogue.py compiles it and calls it; docs/epilogues.md says what each piece must
// fulfil.
#include <cmath>
#include <limits>

#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "instantiate.h"

namespace cutlass_ops {
namespace epilogue {

/// Step: z limited to [low, high], the next two numbers of the call. NaN passes, both comparisons
/// being false.
struct Clamp {
  float low, high;

  static Clamp make(Reader& reader, int) {
    float const low = static_cast<float>(reader.next());
    return {low, static_cast<float>(reader.next())};
  }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [this](float x) { return x < low ? low : x > high ? high : x; });
  }
};

/// Monoid: log(exp a + exp b), which never overflows. Of nothing it is log 0.
struct LogSumExpMonoid {
  CUTLASS_OPS_HOST_DEVICE static float identity() {
    return -std::numeric_limits<float>::infinity();
  }
  CUTLASS_OPS_HOST_DEVICE static float combine(float a, float b) {
    float const larger = a > b || a != a ? a : b;
    // Equal infinities: their difference would be NaN.
    return a == b ? larger + 0.69314718f : larger + log1pf(expf(-fabsf(a - b)));
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops

using namespace cutlass_ops::epilogue;

CUTLASS_OPS_REGISTER_EPILOGUE("clamp_logsumexp",
                              Description<Chain<Bias, Clamp>, RowReduce<LogSumExpMonoid>>)
