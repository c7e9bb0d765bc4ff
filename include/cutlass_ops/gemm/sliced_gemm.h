// Sliced-K kernel: one tile and one share of k a CTA. It serves grids of few waves: half as many
// partial sums go through memory as with two CTAs an SM, or none.
#pragma once

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/sliced_mainloop.h"

namespace cutlass_ops {
namespace gemm {

/// What simt_gemm runs, as SimtGemm.
template <class GroupMainloop, class Tile_, class Chain, class Sink>
struct SlicedGemm {
  using Mainloop = SlicedMainloop<GroupMainloop, Tile_>;
  using Tile = Tile_;
  using Cta = typename Mainloop::Cta;
  using Threads = typename Mainloop::Threads;
  using Epilogue = SimtEpilogue<Tile, Chain, Sink, Threads>;

  static_assert(Epilogue::Staging::kSlices == 2,
                "half of the accumulators are a slice of the rows");

  struct Params {
    Problem problem;
    Raster raster;
    int k_per_split;  ///< a multiple of Tile::kK
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
  };

  struct SharedStorage {
    typename Mainloop::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue[2];  ///< of each group
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    typename Mainloop::Accumulators accumulators;
    TileCoordinate tile = params.raster.locate(cta_index());
    Mainloop::run(params.mainloop, params.problem, Mainloop::origin(params.problem, tile),
                  KRange::of(params.problem, tile.split, params.k_per_split), storage.mainloop,
                  accumulators);
    release_successor();
    tile = params.raster.locate(cta_index());
    Epilogue::run(params.epilogue, storage.epilogue[Threads::group()], accumulators,
                  params.problem.m, tile, Mainloop::origin(params.problem, tile));
  }

 private:
  /// Asked for again behind the mainloop, which leaves no registers to remember what follows from
  /// it.
  CUTLASS_OPS_DEVICE static unsigned cta_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
