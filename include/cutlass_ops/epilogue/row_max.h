// Monoid of the row maximum.
#pragma once

#include <limits>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

/// The maximum as torch.max has it: NaN wins over every number; of nothing it is -inf.
struct MaxMonoid {
  CUTLASS_OPS_HOST_DEVICE static float identity() {
    return -std::numeric_limits<float>::infinity();
  }
  CUTLASS_OPS_HOST_DEVICE static float combine(float a, float b) {
    // `a > b` is false where b is NaN, and then b is the answer; where a is NaN it is a.
    return (a > b || a != a) ? a : b;
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
