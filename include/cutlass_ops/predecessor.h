// What a kernel does about the one before it in its stream (dependent_launch.h).
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {

/// Waits until everything before this kernel in its stream is done and visible. A kernel that is
/// launched by launch_dependent calls it before it touches memory, with one exception: behind a
/// predecessor all of whose threads wait before any of its CTAs releases, it may first read what is
/// older than that one, and write what only older kernels used. It must not end before its
/// predecessor all the same, since those behind it wait for it alone: some CTA waits before it
/// ends.
CUTLASS_OPS_DEVICE void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel's CTAs come once every CTA of this one has called it or ended.
CUTLASS_OPS_DEVICE void release_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace cutlass_ops
