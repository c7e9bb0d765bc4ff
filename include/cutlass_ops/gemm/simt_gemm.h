// Kernel of the SIMT families: a mainloop over one CTA tile and one share of k, then the adapter.
#pragma once

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"

namespace cutlass_ops {
namespace gemm {

template <class Mainloop_, class Tile_, class Chain, class Sink>
struct SimtGemm {
  using Mainloop = Mainloop_;
  using Tile = Tile_;
  using Cta = Tile;  ///< its threads, and how many of it an SM takes
  using Epilogue = SimtEpilogue<Tile, Chain, Sink>;

  struct Params {
    Problem problem;
    Raster raster;
    int k_per_split;  ///< a multiple of Tile::kK
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
  };

  union SharedStorage {
    typename Mainloop::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue;
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    TileCoordinate const tile = params.raster.locate(blockIdx.x);
    Problem const& problem = params.problem;
    TileOrigin const origin = Mainloop::origin(problem, tile);
    KRange const share = KRange::of(problem, tile.split, params.k_per_split);

    typename Mainloop::Accumulators accumulators;
    accumulators.clear();
    if (share.begin < share.end) {  // k = 0 leaves the accumulators at zero
      Mainloop::run(params.mainloop, problem, origin, share.begin, share.end, storage.mainloop,
                    accumulators);
    }
    release_successor();
    Epilogue::run(params.epilogue, storage.epilogue, accumulators, problem.m, tile, origin);
  }
};

/// SimtGemm or SlicedGemm.
template <class Gemm>
__global__ void __launch_bounds__(Gemm::Cta::kThreads, Gemm::Cta::kCtasPerSm) simt_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  wait_for_predecessor();
  extern __shared__ __align__(16) unsigned char shared[];
  Gemm::run(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared));
}

}  // namespace gemm
}  // namespace cutlass_ops
