// Combines numbers over the threads that share a row.
#pragma once

#include <cmath>

#include "cutlass_ops/epilogue/warp_reduce.h"

namespace cutlass_ops {
namespace kernel {

/// Unlike epilogue::MaxMonoid it drops NaN.
struct FloatMax {
  CUTLASS_OPS_DEVICE static float identity() { return -INFINITY; }
  CUTLASS_OPS_DEVICE static float combine(float a, float b) { return fmaxf(a, b); }
};

/// Combines over the kThreads threads that share a row: part of a warp, a warp, or the whole CTA,
/// which may do so once per monoid, each having its own shared memory.
template <class Monoid, int kThreads>
CUTLASS_OPS_DEVICE float reduce_threads(float value) {
  if constexpr (kThreads <= 32) {
    return epilogue::warp_reduce<Monoid, kThreads>(value);
  } else {
    constexpr int kWarps = kThreads / 32;
    static_assert((kWarps & (kWarps - 1)) == 0, "the warps' numbers are reduced by lanes");
    __shared__ float partials[kWarps];
    value = epilogue::warp_reduce<Monoid>(value);
    if (threadIdx.x % 32 == 0) {
      partials[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return epilogue::warp_reduce<Monoid, kWarps>(partials[threadIdx.x % kWarps]);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
