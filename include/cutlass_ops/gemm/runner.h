// Device-level runner of the portable SIMT family: one tile configuration, one description, one
// launch.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/gemm/simt_gemm.h"
#include "cutlass_ops/launch.h"

namespace cutlass_ops {
namespace gemm {

template <class Tile, class Chain, class Sink>
struct SimtRunner {
  using Gemm = SimtGemm<Tile, Chain, Sink>;

  static Raster raster(Problem const& problem, int splits) {
    return {int(ceil_div(problem.m, Tile::kM)), int(ceil_div(problem.n, Tile::kN)), splits};
  }

  /// Windows must not straddle column tiles, and the tile index must fit the grid.
  static Status can_implement(Problem const& problem, Chain const& chain, int splits) {
    if (Tile::kN % chain.window() != 0) {
      return {cudaErrorInvalidValue, "simt_gemm: the pooling window does not divide the tile"};
    }
    if (raster(problem, splits).ctas() > INT_MAX) {
      return {cudaErrorInvalidConfiguration, "simt_gemm: more than 2^31 - 1 tiles"};
    }
    return {};
  }

  static Status run(Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                    cudaStream_t stream) {
    Status const status = can_implement(problem, chain, splits);
    if (!status.ok()) {
      return status;
    }
    Raster const tiles = raster(problem, splits);
    int const k_per_split = int(ceil_div(ceil_div(problem.k, splits), Tile::kK)) * Tile::kK;
    typename Gemm::Epilogue::Params const epilogue{chain, sink, chain.window(),
                                                   problem.n / chain.window()};
    return launch("simt_gemm", simt_gemm<Gemm>, tiles.ctas(), Tile::kThreads, stream,
                  Gemm::Params::make(problem, tiles, k_per_split, epilogue));
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
