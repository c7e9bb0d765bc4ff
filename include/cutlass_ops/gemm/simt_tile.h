// Tile configurations of the portable SIMT mainloop: CUTLASS's two-stage core (arch::Sm50), which
// serves every architecture. Its transposing stores are padded by four floats; those of the Sm80
// multistage core are not, and conflict eight ways (32.7 against 42.7 TFLOP/s at 128x128 on an
// H200).
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/gemm/gemm.h"
#include "cutlass/gemm/threadblock/default_mma.h"
#include "cutlass/layout/matrix.h"

namespace cutlass_ops {
namespace gemm {

/// A CTA tile kM x kN x 8, cut into warp tiles kWarpM x kWarpN. `kCtasPerSm` bounds the registers
/// of a thread so that as many CTAs fit on an SM.
template <int kM_, int kN_, int kWarpM_, int kWarpN_, int kCtasPerSm_>
struct SimtTile {
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kK = 8;
  static constexpr int kWarpM = kWarpM_;
  static constexpr int kWarpN = kWarpN_;
  static constexpr int kCtasPerSm = kCtasPerSm_;
  static constexpr int kThreads = 32 * (kM / kWarpM) * (kN / kWarpN);
  static constexpr int kStages = 2;

  // K-major operands with scalar loads (alignment 1): any row stride and any pointer will do.
  using Mma = typename cutlass::gemm::threadblock::DefaultMma<
      float, cutlass::layout::RowMajor, 1, float, cutlass::layout::ColumnMajor, 1, float,
      cutlass::layout::RowMajor, cutlass::arch::OpClassSimt, cutlass::arch::Sm50,
      cutlass::gemm::GemmShape<kM, kN, kK>, cutlass::gemm::GemmShape<kWarpM, kWarpN, kK>,
      cutlass::gemm::GemmShape<1, 1, 1>, kStages, cutlass::arch::OpMultiplyAdd>::ThreadblockMma;
  using WarpMma = typename Mma::Operator;
};

// Figures in docs/performance.md. The largest is the fastest where there are enough tiles: its 128
// accumulators a thread leave room for one CTA per SM.
using Simt128x256 = SimtTile<128, 256, 64, 64, 1>;
using Simt128x128 = SimtTile<128, 128, 32, 64, 2>;
using Simt128x64 = SimtTile<128, 64, 64, 32, 3>;
using Simt64x64 = SimtTile<64, 64, 32, 32, 4>;

}  // namespace gemm
}  // namespace cutlass_ops
