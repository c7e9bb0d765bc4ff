// Monoid of the row sum. Partial sums combine in a fixed order, so the result is bit-identical from
// run to run.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct SumMonoid {
  CUTLASS_OPS_HOST_DEVICE static float identity() { return 0.0f; }
  CUTLASS_OPS_HOST_DEVICE static float combine(float a, float b) { return a + b; }
};

}  // namespace epilogue
}  // namespace cutlass_ops
