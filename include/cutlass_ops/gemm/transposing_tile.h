// Tile of our own SIMT mainloop, which transposes K-major operands on the way into shared memory.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/gemm/gemm.h"
#include "cutlass/gemm/warp/mma_simt.h"
#include "cutlass/gemm/warp/mma_simt_policy.h"
#include "cutlass/layout/matrix.h"

namespace cutlass_ops {
namespace gemm {

/// A tile 128 x 128 x 32 of eight warps, 8 x 8 accumulators a thread, two of them on an SM: as two
/// CTAs, or as two groups of one (SlicedMainloop).
///
/// The type of the warp operator says which accumulators a thread holds, for the adapter; its own
/// loop is not used. Lanes lie 4 along m by 8 along n, accumulators in blocks of 4 x 4.
struct TransposingTile {
  static constexpr int kM = 128;
  static constexpr int kN = 128;
  static constexpr int kK = 32;
  static constexpr int kWarpM = 32;
  static constexpr int kWarpN = 64;
  static constexpr int kCtasPerSm = 2;
  static constexpr int kThreads = 32 * (kM / kWarpM) * (kN / kWarpN);

  using WarpMma = cutlass::gemm::warp::MmaSimt<
      cutlass::gemm::GemmShape<kWarpM, kWarpN, kK>, float, cutlass::layout::ColumnMajor, float,
      cutlass::layout::RowMajor, float, cutlass::layout::RowMajor,
      cutlass::gemm::warp::MmaSimtPolicy<cutlass::MatrixShape<4, 8>, cutlass::layout::RowMajor,
                                         cutlass::gemm::GemmShape<4, 4, 1>>>;
};

}  // namespace gemm
}  // namespace cutlass_ops
