// Sliced-K kernel: two groups of threads work on one tile, each on a part of the CTA's share of k,
// and add up in shared memory. It serves grids of one wave, where it halves the partial sums that
// go through memory, or needs none.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/thread_group.h"

namespace cutlass_ops {
namespace gemm {

/// What a CTA takes of an SM, and of the problem.
template <class Tile>
struct SlicedCta {
  static constexpr int kSlices = 2;
  static constexpr int kM = Tile::kM;
  static constexpr int kN = Tile::kN;
  static constexpr int kK = Tile::kK;
  static constexpr int kThreads = kSlices * Tile::kThreads;
  static constexpr int kCtasPerSm = 1;
};

/// `Mainloop` runs in GroupThreads<Tile::kThreads>.
template <class Mainloop_, class Tile_, class Chain, class Sink>
struct SlicedGemm {
  using Mainloop = Mainloop_;
  using Tile = Tile_;
  using Cta = SlicedCta<Tile>;
  using Threads = GroupThreads<Tile::kThreads>;
  using Epilogue = SimtEpilogue<Tile, Chain, Sink, Threads>;
  using Accumulators = typename Mainloop::Accumulators;
  using Vector = epilogue::Fragment<4>;

  /// Of 64 blocks of k: the warp schedulers prefer the warps of the second group. So cut, both end
  /// together, and neither has the SM for itself, when it would be slower than two
  /// (docs/performance.md).
  static constexpr int kFirstOf64 = 26;

  /// Accumulators that a thread finishes, and those that it hands to the other group.
  static constexpr int kFinished = Accumulators::kElements / Cta::kSlices;
  static constexpr int kVectors = kFinished / 4;
  static_assert(Epilogue::Staging::kSlices == Cta::kSlices, "a group finishes a slice of the rows");
  static_assert(kVectors * 4 * Cta::kSlices == Accumulators::kElements, "whole vectors");

  struct Params {
    Problem problem;
    Raster raster;
    int k_per_split;  ///< a multiple of Tile::kK
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
  };

  /// What the groups hand to one another lies beside the staged rows: the one is still read when
  /// the other is written.
  struct Finish {
    Vector sums[kVectors][Tile::kThreads];
    typename Epilogue::SharedStorage epilogue;
  };

  union Group {
    typename Mainloop::SharedStorage mainloop;
    Finish finish;
  };

  struct SharedStorage {
    alignas(16) Group groups[Cta::kSlices];
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    Accumulators accumulators;
    accumulators.clear();
    multiply(params, storage, accumulators);
    release_successor();
    add_up(storage, accumulators);
    TileCoordinate const tile = params.raster.locate(cta_index());
    Epilogue::run(params.epilogue, storage.groups[Threads::group()].finish.epilogue, accumulators,
                  params.problem.m, tile, Mainloop::origin(params.problem, tile));
  }

 private:
  /// Asked for again after the mainloop, which leaves no registers to remember it or what follows
  /// from it.
  CUTLASS_OPS_DEVICE static unsigned cta_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
  }

  CUTLASS_OPS_DEVICE static void multiply(Params const& params, SharedStorage& storage,
                                          Accumulators& accumulators) {
    TileCoordinate const tile = params.raster.locate(cta_index());
    Problem const& problem = params.problem;
    KRange const share = KRange::of(problem, tile.split, params.k_per_split);
    int const cut = share.begin + first_share(share.end - share.begin);
    int const group = Threads::group();
    int const begin = group == 0 ? share.begin : cut;
    int const end = group == 0 ? cut : share.end;
    if (begin < end) {
      Mainloop::run(params.mainloop, problem, Mainloop::origin(problem, tile), begin, end,
                    storage.groups[group].mainloop, accumulators);
    }
  }

  /// Of so many k.
  CUTLASS_OPS_DEVICE static int first_share(int count) {
    int const blocks = (count + Tile::kK - 1) / Tile::kK;
    int const first = int((std::int64_t{blocks} * kFirstOf64 + 63) / 64);
    return min(count, first * Tile::kK);
  }

  /// Of each thread's accumulators, one half goes to the thread of its number in the other group,
  /// and the other half becomes the sum of both.
  CUTLASS_OPS_DEVICE static void add_up(SharedStorage& storage, Accumulators& accumulators) {
    int const group = Threads::group();
    int const thread = Threads::index();
    CUTLASS_OPS_UNROLL
    for (int slice = 0; slice < Cta::kSlices; ++slice) {
      if (slice != group) {
        CUTLASS_OPS_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          Vector vector;
          CUTLASS_OPS_UNROLL
          for (int j = 0; j < 4; ++j) {
            vector[j] = accumulators[slice * kFinished + 4 * i + j];
          }
          storage.groups[group].finish.sums[i][thread] = vector;
        }
      }
    }
    __syncthreads();
    CUTLASS_OPS_UNROLL
    for (int slice = 0; slice < Cta::kSlices; ++slice) {
      if (slice == group) {
        CUTLASS_OPS_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          Vector const vector = storage.groups[1 - group].finish.sums[i][thread];
          CUTLASS_OPS_UNROLL
          for (int j = 0; j < 4; ++j) {
            accumulators[slice * kFinished + 4 * i + j] += vector[j];
          }
        }
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
