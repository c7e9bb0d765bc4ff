// Device-level runner of the SIMT families: one kernel, one description, one launch.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/gemm/simt_gemm.h"
#include "cutlass_ops/launch.h"

namespace cutlass_ops {
namespace gemm {

/// Gemm: SimtGemm or SlicedGemm.
template <class Gemm>
struct SimtRunner {
  using Mainloop = typename Gemm::Mainloop;
  using Tile = typename Gemm::Tile;
  static constexpr int kSharedBytes = sizeof(typename Gemm::SharedStorage);

  /// Also, the tile index must fit the grid.
  template <class Chain>
  static Status can_implement(Problem const& problem, Chain const& chain, int splits) {
    if (Raster::of<Tile>(problem, splits).ctas() > INT_MAX) {
      return {cudaErrorInvalidConfiguration, "simt_gemm: more than 2^31 - 1 tiles"};
    }
    Status const status = Gemm::Epilogue::can_implement(chain);
    return status.ok() ? Mainloop::can_implement(problem) : status;
  }

  template <class Chain, class Sink>
  static Status run(Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                    cudaStream_t stream) {
    Status status = can_implement(problem, chain, splits);
    if (status.ok()) {
      status = allow_dynamic_shared<simt_gemm<Gemm>, kSharedBytes>("simt_gemm: shared memory");
    }
    if (!status.ok()) {
      return status;
    }
    Raster const tiles = Raster::of<Tile>(problem, splits);
    int const k_per_split = int(ceil_div(ceil_div(problem.k, splits), Tile::kK)) * Tile::kK;
    typename Gemm::Params const params{problem, tiles, k_per_split, Mainloop::Params::make(problem),
                                       Gemm::Epilogue::Params::make(chain, sink, problem.n)};
    if constexpr (Gemm::Cta::kCtasPerSm == 1) {
      return launch_dependent<simt_gemm<Gemm>>("simt_gemm", tiles.ctas(), Gemm::Cta::kThreads,
                                               kSharedBytes, stream, params);
    } else {
      // CTAs that come early crowd on the first SMs that have room: 307 us in place of 261 for
      // 64 x 8192 x 8192, call after call.
      return launch_with_shared("simt_gemm", simt_gemm<Gemm>, tiles.ctas(), Gemm::Cta::kThreads,
                                kSharedBytes, stream, params);
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
