// Monoid of the row sum. Partial sums combine in a fixed order, so the result is bit-identical from
// run to run.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct SumMonoid {
  CUTLASS_OPS_HOST_DEVICE static float identity() { return 0.0f; }

  template <class T>
  CUTLASS_OPS_HOST_DEVICE static T combine(T a, T b) {
    return a + b;
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
