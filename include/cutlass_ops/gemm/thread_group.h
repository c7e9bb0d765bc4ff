// The threads that work on one tile and one share of k together, as a mainloop and its adapter see
// them.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// All threads of a CTA.
struct CtaThreads {
  CUTLASS_OPS_DEVICE static int index() { return threadIdx.x; }
  CUTLASS_OPS_DEVICE static void synchronize() { __syncthreads(); }

  /// Whether the adapter takes this slice of the tile's rows (SimtStaging) in these threads.
  CUTLASS_OPS_DEVICE static constexpr bool finishes(int) { return true; }
};

/// One of the groups of kThreads that a CTA consists of. Each has a share of k of its own, and
/// finishes the slice of rows that bears its number.
template <int kThreads>
struct GroupThreads {
  static_assert(kThreads % 32 == 0, "barriers count warps");

  /// Asked of the warp as a whole, so that the compiler sees that its threads agree: loops whose
  /// length depends on it keep uniform registers.
  CUTLASS_OPS_DEVICE static int group() {
    return __any_sync(0xffffffffu, threadIdx.x >= kThreads) ? 1 : 0;
  }

  /// Read each time: what follows from it would be kept on the stack over the mainloop.
  CUTLASS_OPS_DEVICE static int index() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % kThreads;
  }

  /// CUTLASS's named barriers trap in code for GPUs before Hopper, which newer ones may translate.
  CUTLASS_OPS_DEVICE static void synchronize() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group()), "n"(kThreads) : "memory");
  }

  CUTLASS_OPS_DEVICE static bool finishes(int slice) { return slice == group(); }
};

}  // namespace gemm
}  // namespace cutlass_ops
