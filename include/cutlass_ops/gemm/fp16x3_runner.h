// Device-level runner of the "fp16x3" kernels.
#pragma once

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/gemm/fp16x3_gemm.h"

namespace cutlass_ops {
namespace gemm {

/// Gemm: Fp16x3Gemm.
template <class Gemm>
struct Fp16x3Runner {
  using Mainloop = typename Gemm::Mainloop;
  using Tile = typename Gemm::Tile;
  static constexpr int kSharedBytes = sizeof(typename Gemm::SharedStorage);
  static_assert(kSharedBytes <= 227 * 1024, "the shared memory of an SM");

  /// `column_flags`: for every column tile, whether a row of W in it has no halves.
  template <class Chain, class Sink>
  static Status run(typename Mainloop::Operand const& x, Fp16Pairs const& w, Chain const& chain,
                    Sink const& sink, int splits, int ctas, int* column_flags,
                    cudaStream_t stream) {
    Status status = Gemm::Epilogue::can_implement(chain);
    if (status.ok()) {
      status = Mainloop::can_implement(x);
    }
    if (status.ok() && !has_hopper_code<fp16x3_gemm<Gemm>>()) {
      status = {cudaErrorNoKernelImageForDevice, "fp16x3_gemm: built without 90a"};
    }
    if (status.ok()) {
      status = allow_dynamic_shared<fp16x3_gemm<Gemm>, kSharedBytes>("fp16x3_gemm: shared memory");
    }
    if (!status.ok()) {
      return status;
    }
    Raster const raster{int(ceil_div(x.rows, Tile::kM)), int(ceil_div(w.rows, Tile::kN)), splits};
    int const tiles_of_k = int(ceil_div(x.columns, Tile::kK));
    typename Gemm::Params const params{Mainloop::Params::make(x, w),
                                       Gemm::Epilogue::Params::make(chain, sink, x.rows, w),
                                       raster,
                                       tiles_of_k,
                                       int(ceil_div(tiles_of_k, splits)),
                                       column_flags};
    return launch_dependent<fp16x3_gemm<Gemm>>("fp16x3_gemm",
                                               std::min<std::int64_t>(raster.ctas(), ctas),
                                               Tile::kThreads, kSharedBytes, stream, params);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
