// Kernel of the SIMT family: a mainloop over one CTA tile and one share of k, then the adapter.
#pragma once

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/portable_mainloop.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/transposing_mainloop.h"

namespace cutlass_ops {
namespace gemm {

template <class Mainloop_, class Tile_, class Chain, class Sink>
struct SimtGemm {
  using Mainloop = Mainloop_;
  using Tile = Tile_;
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
    std::int64_t const share = std::int64_t{tile.split} * params.k_per_split;
    int const k_begin = int(min(std::int64_t{problem.k}, share));
    int const k_end = int(min(std::int64_t{problem.k}, share + params.k_per_split));

    typename Mainloop::Accumulators accumulators;
    accumulators.clear();
    if (k_begin < k_end) {  // k = 0 leaves the accumulators at zero
      Mainloop::run(params.mainloop, problem, origin, k_begin, k_end, storage.mainloop,
                    accumulators);
    }
    release_successor();
    Epilogue::run(params.epilogue, storage.epilogue, accumulators, problem.m, tile, origin,
                  threadIdx.x);
  }
};

template <class Gemm>
__global__ void __launch_bounds__(Gemm::Tile::kThreads, Gemm::Tile::kCtasPerSm) simt_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  wait_for_predecessor();
  extern __shared__ __align__(16) unsigned char shared[];
  Gemm::run(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared));
}

}  // namespace gemm
}  // namespace cutlass_ops
