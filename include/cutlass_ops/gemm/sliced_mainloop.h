// Sliced-K: two groups of threads work on one tile, each on a part of the CTA's share of k, and add
// up in shared memory. One CTA has an SM for itself.
//
// Two CTAs on an SM advance at different speeds, so that one ends early and the other goes on
// alone, slower than both; who ends when depends on where CTAs were placed. Two groups of a CTA do
// too, but there the share of each can be cut to its speed (docs/performance.md).
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/thread_group.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// `GroupMainloop` runs in GroupThreads<Tile::kThreads>.
template <class GroupMainloop, class Tile>
struct SlicedMainloop {
  using Threads = GroupThreads<Tile::kThreads>;
  using Accumulators = typename GroupMainloop::Accumulators;
  using Params = typename GroupMainloop::Params;
  using Vector = epilogue::Fragment<4>;

  /// What a CTA is to the grid.
  struct Cta {
    static constexpr int kM = Tile::kM;
    static constexpr int kN = Tile::kN;
    static constexpr int kK = Tile::kK;
    static constexpr int kThreads = 2 * Tile::kThreads;
    static constexpr int kCtasPerSm = 1;
  };

  /// The first group's part, of 64 blocks of k: the warp schedulers prefer the warps of the second.
  /// So cut, both end together.
  static constexpr int kFirstOf64 = 26;

  /// Each group finishes one half of every thread's accumulators, in vectors.
  static constexpr int kVectors = Accumulators::kElements / 8;
  static_assert(kVectors * 8 == Accumulators::kElements, "two halves in whole vectors");

  union GroupStorage {
    typename GroupMainloop::SharedStorage mainloop;
    Vector sums[kVectors][Tile::kThreads];  ///< for the other group
  };

  struct SharedStorage {
    alignas(16) GroupStorage groups[2];
  };

  static Status can_implement(Problem const& problem) {
    return GroupMainloop::can_implement(problem);
  }

  CUTLASS_OPS_DEVICE static TileOrigin origin(Problem const& problem, TileCoordinate const& tile) {
    return GroupMainloop::origin(problem, tile);
  }

  /// Sets those accumulators that a thread's group finishes to x Wᵀ over the range; the others are
  /// left with anything. The storage may be read until the CTA's next barrier.
  CUTLASS_OPS_DEVICE static void run(Params const& params, Problem const& problem,
                                     TileOrigin origin, KRange range, SharedStorage& storage,
                                     Accumulators& accumulators) {
    meet_as_often(range);
    KRange const part = part_of(range, Threads::group());
    accumulators.clear();
    if (part.begin < part.end) {
      GroupMainloop::run(params, problem, origin, part.begin, part.end,
                         storage.groups[Threads::group()].mainloop, accumulators);
    }
    add_up(storage, accumulators);
  }

  /// The accumulators that this thread's group finishes, four at a time: `visit(index, vector)` may
  /// change them.
  template <class Visit>
  CUTLASS_OPS_DEVICE static void visit_finished(Accumulators& accumulators, Visit visit) {
    visit_half(accumulators, Threads::group(), visit);
  }

 private:
  CUTLASS_OPS_DEVICE static KRange part_of(KRange range, int group) {
    int const blocks = (range.end - range.begin + Tile::kK - 1) / Tile::kK;
    int const first = int((std::int64_t{blocks} * kFirstOf64 + 63) / 64);
    int const cut = min(range.end, range.begin + first * Tile::kK);
    return group == 0 ? KRange{range.begin, cut} : KRange{cut, range.end};
  }

  /// Barriers that the mainloop has of a group with this part.
  CUTLASS_OPS_DEVICE static int barriers(KRange part) {
    int const tiles = (part.end - part.begin + Tile::kK - 1) / Tile::kK;
    return tiles > 0 ? tiles + 1 : 0;
  }

  /// The group with the smaller part passes as many more barriers. Racecheck numbers accesses by
  /// the barriers that a thread has passed, and would report every exchange between the groups. It
  /// takes some 20 ns a barrier, of a group that then has the SM to share.
  CUTLASS_OPS_DEVICE static void meet_as_often(KRange range) {
    int const group = Threads::group();
    int const more = barriers(part_of(range, 1 - group)) - barriers(part_of(range, group));
    CUTLASS_OPS_UNROLL_BY(1)
    for (int i = 0; i < more; ++i) {
      Threads::synchronize();
    }
  }

  /// Branches, so that accumulators stay registers with indices known to the compiler.
  template <class Visit>
  CUTLASS_OPS_DEVICE static void visit_half(Accumulators& accumulators, int half, Visit visit) {
    CUTLASS_OPS_UNROLL
    for (int candidate = 0; candidate < 2; ++candidate) {
      if (candidate == half) {
        CUTLASS_OPS_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          visit_vector(&accumulators[4 * (candidate * kVectors + i)], i, visit);
        }
      }
    }
  }

  template <class Visit>
  CUTLASS_OPS_DEVICE static void visit_vector(float* elements, int index, Visit visit) {
    Vector vector;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Vector::kWidth; ++i) {
      vector[i] = elements[i];
    }
    visit(index, vector);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Vector::kWidth; ++i) {
      elements[i] = vector[i];
    }
  }

  /// Of each thread's accumulators, one half goes to the thread of its number in the other group,
  /// and the other half becomes the sum of both.
  CUTLASS_OPS_DEVICE static void add_up(SharedStorage& storage, Accumulators& accumulators) {
    int const group = Threads::group();
    int const thread = Threads::index();
    visit_half(accumulators, 1 - group, [&](int i, Vector const& vector) {
      storage.groups[group].sums[i][thread] = vector;
    });
    __syncthreads();
    visit_half(accumulators, group,
               [&](int i, Vector& vector) { vector += storage.groups[1 - group].sums[i][thread]; });
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
