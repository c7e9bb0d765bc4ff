// Kernel of the portable SIMT family: CUTLASS's mainloop over one CTA tile and one share of k, then
// the adapter.
#pragma once

#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/simt_tile.h"

namespace cutlass_ops {
namespace gemm {

template <class Tile_, class Chain, class Sink>
struct SimtGemm {
  using Tile = Tile_;
  using Mma = typename Tile::Mma;
  using IteratorX = typename Mma::IteratorA;
  using IteratorW = typename Mma::IteratorB;
  using Epilogue = SimtEpilogue<Tile, Chain, Sink>;

  struct Params {
    Problem problem;
    Raster raster;
    int k_per_split;  ///< a multiple of Tile::kK
    typename IteratorX::Params x;
    typename IteratorW::Params weight;
    typename Epilogue::Params epilogue;

    static Params make(Problem const& problem, Raster const& raster, int k_per_split,
                       typename Epilogue::Params const& epilogue) {
      return {problem,
              raster,
              k_per_split,
              typename IteratorX::Params(cutlass::layout::RowMajor(problem.x_stride)),
              typename IteratorW::Params(cutlass::layout::ColumnMajor(problem.weight_stride)),
              epilogue};
    }
  };

  union SharedStorage {
    typename Mma::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue;
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    TileCoordinate const tile = params.raster.locate(blockIdx.x);
    Problem const& problem = params.problem;
    int const thread = threadIdx.x;
    int const k_begin = tile.split * params.k_per_split;
    int const k_end = min(problem.k, k_begin + params.k_per_split);

    typename Mma::FragmentC accumulators;
    accumulators.clear();
    if (k_begin < k_end) {  // k = 0 leaves the accumulators at zero
      IteratorX x(params.x, const_cast<float*>(problem.x), {problem.m, k_end}, thread,
                  {tile.tile_m * Tile::kM, k_begin});
      IteratorW weight(params.weight, const_cast<float*>(problem.weight), {k_end, problem.n},
                       thread, {k_begin, tile.tile_n * Tile::kN});
      // The warp index is broadcast so that the compiler sees it uniform.
      int const warp = __shfl_sync(0xffffffffu, thread / 32, 0);
      Mma mma(storage.mainloop, thread, warp, thread % 32);
      mma((k_end - k_begin + Tile::kK - 1) / Tile::kK, accumulators, x, weight, accumulators);
    }
    Epilogue::run(params.epilogue, storage.epilogue, accumulators, problem.m,
                  tile.tile_m * Tile::kM, tile.tile_n, tile.split, thread);
  }
};

template <class Gemm>
__global__ void __launch_bounds__(Gemm::Tile::kThreads, Gemm::Tile::kCtasPerSm) simt_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  __shared__ typename Gemm::SharedStorage storage;
  Gemm::run(params, storage);
}

}  // namespace gemm
}  // namespace cutlass_ops
