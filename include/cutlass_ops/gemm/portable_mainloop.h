// CUTLASS's SIMT mainloop behind the interface that SimtGemm wants of one.
#pragma once

#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_tile.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

template <class Tile>
struct PortableMainloop {
  using Mma = typename Tile::Mma;
  using IteratorX = typename Mma::IteratorA;
  using IteratorW = typename Mma::IteratorB;
  using Accumulators = typename Mma::FragmentC;
  using SharedStorage = typename Mma::SharedStorage;

  struct Params {
    typename IteratorX::Params x;
    typename IteratorW::Params weight;

    static Params make(Problem const& problem) {
      return {typename IteratorX::Params(cutlass::layout::RowMajor(problem.x_stride)),
              typename IteratorW::Params(cutlass::layout::ColumnMajor(problem.weight_stride))};
    }
  };

  static Status can_implement(Problem const&) { return {}; }

  CUTLASS_OPS_DEVICE static TileOrigin origin(Problem const&, TileCoordinate const& tile) {
    return {tile.tile_m * Tile::kM, tile.tile_n * Tile::kN};
  }

  /// Adds x Wᵀ over k in [k_begin, k_end), which is not empty, onto the accumulators.
  CUTLASS_OPS_DEVICE static void run(Params const& params, Problem const& problem,
                                     TileOrigin origin, int k_begin, int k_end,
                                     SharedStorage& storage, Accumulators& accumulators) {
    int const thread = threadIdx.x;
    IteratorX x(params.x, const_cast<float*>(problem.x), {problem.m, k_end}, thread,
                {origin.row, k_begin});
    IteratorW weight(params.weight, const_cast<float*>(problem.weight), {k_end, problem.n}, thread,
                     {k_begin, origin.column});
    // The warp index is broadcast so that the compiler sees it uniform.
    int const warp = __shfl_sync(0xffffffffu, thread / 32, 0);
    Mma mma(storage, thread, warp, thread % 32);
    mma((k_end - k_begin + Tile::kK - 1) / Tile::kK, accumulators, x, weight, accumulators);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
