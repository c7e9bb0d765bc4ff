// Device-level runner of the stream-K kernel.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/gemm/stream_gemm.h"
#include "cutlass_ops/kernel/clear_words.h"

namespace cutlass_ops {
namespace gemm {

/// Gemm: StreamGemm.
template <class Gemm>
struct StreamRunner {
  using Mainloop = typename Gemm::Mainloop;
  using Tile = typename Gemm::Tile;
  static constexpr int kSharedBytes = sizeof(typename Gemm::SharedStorage);

  template <class Chain>
  static Status can_implement(Problem const& problem, Chain const& chain) {
    Status const status = Gemm::Epilogue::can_implement(chain);
    return status.ok() ? Mainloop::can_implement(problem) : status;
  }

  /// `exchange` holds a tile and a flag for every CTA, for no more pieces are published, and a
  /// count of the items taken; 16-byte aligned.
  template <class Chain, class Sink>
  static Status run(Problem const& problem, Chain const& chain, Sink const& sink, int ctas,
                    float* exchange, cudaStream_t stream) {
    Status status = can_implement(problem, chain);
    if (status.ok()) {
      status = allow_dynamic_shared<stream_gemm<Gemm>, kSharedBytes>("stream_gemm: shared memory");
    }
    int* const published =
        reinterpret_cast<int*>(exchange + std::int64_t{ctas} * Gemm::kTileElements);
    if (status.ok()) {
      constexpr int kThreads = 256;
      status = launch_dependent<kernel::clear_words<kThreads>>(
          "stream_gemm: flags", ceil_div(ctas + 1, kThreads), kThreads, 0, stream, published,
          ctas + 1);
    }
    if (!status.ok()) {
      return status;
    }
    Raster const raster = Raster::of<Tile>(problem, 1);
    StreamK const cut = StreamK::make(int(raster.ctas()), int(ceil_div(problem.k, Tile::kK)), ctas);
    typename Gemm::Params const params{problem,
                                       raster,
                                       cut,
                                       {exchange, published, published + ctas},
                                       Mainloop::Params::make(problem),
                                       Gemm::Epilogue::Params::make(chain, sink, problem.n)};
    return launch_dependent<stream_gemm<Gemm>>("stream_gemm", ctas, Gemm::Cta::kThreads,
                                               kSharedBytes, stream, params);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
