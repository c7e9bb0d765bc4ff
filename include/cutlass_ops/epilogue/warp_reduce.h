// A reduction over the lanes of a warp.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

#if defined(CUTLASS_OPS_DEVICE)
/// Combines the values of each group of kLanes lanes as a butterfly, whose order is fixed; every
/// lane gets the result.
template <class Monoid, int kLanes = 32, class T = float>
CUTLASS_OPS_DEVICE T warp_reduce(T value) {
  CUTLASS_OPS_UNROLL
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Monoid::combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}
#endif

}  // namespace epilogue
}  // namespace cutlass_ops
