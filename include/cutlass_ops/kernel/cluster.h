// What the CTAs of a cluster do together. Compute capability 9.0 brought clusters.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace cutlass_ops {
namespace kernel {

CUTLASS_OPS_DEVICE int cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

/// Orders nothing in memory: it only says that this CTA runs.
CUTLASS_OPS_DEVICE void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// Releases what this thread has stored before.
CUTLASS_OPS_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

CUTLASS_OPS_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/// Into the shared memory of CTA `rank`, where `place` is in this one's.
CUTLASS_OPS_DEVICE void store_remote(float2* place, int rank, float2 value) {
  unsigned const local = unsigned(__cvta_generic_to_shared(place));
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(remote), "f"(value.x), "f"(value.y)
               : "memory");
}

}  // namespace kernel
}  // namespace cutlass_ops
#endif
