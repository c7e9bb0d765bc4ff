// Where what the threads of a CTA have goes in a list, in the order of the threads.
#pragma once

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// In shared memory.
template <int kThreads>
struct CtaPlaces {
  static constexpr int kWarps = kThreads / 32;

  struct Range {
    int first;  ///< of this thread's places
    int all;    ///< places of the whole CTA
  };

  int of_warp[kWarps];

  /// Of a thread that has `mine` entries, up to kMost. Called by the whole CTA, which meets again
  /// before the next call.
  template <int kMost>
  CUTLASS_OPS_DEVICE Range take(int mine) {
    int const lane = threadIdx.x % 32;
    int const warp = threadIdx.x / 32;
    int first = 0;
    int of_this_warp = 0;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kMost; ++i) {
      unsigned const votes = __ballot_sync(0xffffffffu, mine > i);
      first += __popc(votes & ((1u << lane) - 1));
      of_this_warp += __popc(votes);
    }
    if (lane == 0) {
      of_warp[warp] = of_this_warp;
    }
    __syncthreads();
    int all = 0;
    for (int other = 0; other < kWarps; ++other) {
      first += other < warp ? of_warp[other] : 0;
      all += of_warp[other];
    }
    return {first, all};
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
