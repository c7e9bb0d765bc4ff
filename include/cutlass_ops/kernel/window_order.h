// In which order CTAs take the windows of a row maximum. Those that win somewhere are more work: a
// CTA waits for memory several times before it writes. Among the last, they would be what the
// kernel ends with (docs/performance.md).
#pragma once

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/cta_places.h"
#include "cutlass_ops/kernel/winners.h"

namespace cutlass_ops {
namespace kernel {

/// The windows of a thread's share of the kRows rows from `first` on, which are neighbours.
template <int kThreads>
struct RowWindows {
  static constexpr int kEach = 4;
  static constexpr int kRows = kEach * kThreads;

  int windows[kEach];  ///< -1 beyond the last row

  CUTLASS_OPS_DEVICE static int begin(int first) { return first + kEach * int(threadIdx.x); }

  CUTLASS_OPS_DEVICE static RowWindows load(int const* of_rows, int first, int rows) {
    RowWindows some;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      int const row = begin(first) + i;
      some.windows[i] = row < rows ? of_rows[row] : -1;
    }
    return some;
  }

  CUTLASS_OPS_DEVICE int count(int window) const {
    int found = 0;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      found += windows[i] == window ? 1 : 0;
    }
    return found;
  }
};

/// Blocks of neighbouring windows, found by the whole CTA. In shared memory.
template <int kThreads>
struct WindowOrder {
  static constexpr int kBlocksPerThread = 4;
  static constexpr int kBlocks = kThreads * kBlocksPerThread;

  struct Place {
    int block;
    bool wins;  ///< one of its windows does
  };

  bool wins[kBlocks];
  Place chosen;
  CtaPlaces<kThreads> places;

  /// The block at a place of this order: all that win, then the others.
  CUTLASS_OPS_DEVICE Place at(int place, Winners const& winners, int block_windows) {
    find(winners, block_windows);
    int const begin = kBlocksPerThread * int(threadIdx.x);
    int mine = 0;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kBlocksPerThread; ++i) {
      mine += wins[begin + i] ? 1 : 0;
    }
    auto const range = places.template take<kBlocksPerThread>(mine);
    bool const is_winner = place < range.all;
    int const rank = is_winner ? place : place - range.all;
    int before = is_winner ? range.first : begin - range.first;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kBlocksPerThread; ++i) {
      if (wins[begin + i] == is_winner && before++ == rank) {
        chosen = {begin + i, is_winner};
      }
    }
    __syncthreads();
    return chosen;
  }

 private:
  CUTLASS_OPS_DEVICE void find(Winners const& winners, int block_windows) {
    using Rows = RowWindows<kThreads>;
    Rows next = Rows::load(winners.winners, 0, winners.rows);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kBlocksPerThread; ++i) {
      wins[kBlocksPerThread * int(threadIdx.x) + i] = false;
    }
    __syncthreads();
    for (int first = 0; first < winners.rows; first += Rows::kRows) {
      Rows const here = next;
      next = Rows::load(winners.winners, first + Rows::kRows, winners.rows);
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Rows::kEach; ++i) {
        if (here.windows[i] >= 0) {
          wins[here.windows[i] / block_windows] = true;
        }
      }
    }
    __syncthreads();
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
