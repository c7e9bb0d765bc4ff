// Device-level runner of the SIMT family: one mainloop and tile, one description, one launch.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/gemm/simt_gemm.h"

namespace cutlass_ops {
namespace gemm {

template <class Mainloop, class Tile, class Chain, class Sink>
struct SimtRunner {
  using Gemm = SimtGemm<Mainloop, Tile, Chain, Sink>;
  static constexpr int kSharedBytes = sizeof(typename Gemm::SharedStorage);

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
    return Mainloop::can_implement(problem);
  }

  static Status run(Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                    cudaStream_t stream) {
    Status status = can_implement(problem, chain, splits);
    if (status.ok()) {
      status = allow_dynamic_shared<simt_gemm<Gemm>, kSharedBytes>("simt_gemm: shared memory");
    }
    if (!status.ok()) {
      return status;
    }
    Raster const tiles = raster(problem, splits);
    int const k_per_split = int(ceil_div(ceil_div(problem.k, splits), Tile::kK)) * Tile::kK;
    typename Gemm::Params const params{problem,
                                       tiles,
                                       k_per_split,
                                       Mainloop::Params::make(problem),
                                       {chain, sink, chain.window(), problem.n / chain.window()}};
    return launch_dependent<simt_gemm<Gemm>>("simt_gemm", tiles.ctas(), Tile::kThreads,
                                             kSharedBytes, stream, params);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
