// Splits the transpose of a matrix into the two fp16 halves that gemm::Fp16Pairs holds, without
// writing the transpose: the operands of the products of backward lie the other way round.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/kernel/column_scales.h"
#include "cutlass_ops/kernel/split_target.h"

namespace cutlass_ops {
namespace kernel {

struct SplitColumnsConfig {
  static constexpr int kTile = 64;  ///< rows and columns; a row of halves is a line of L2
  static constexpr int kThreads = 256;
  static constexpr int kStep = kThreads / kTile;
  static constexpr int kLoads = kTile / kStep;            ///< of a thread, all in flight
  static constexpr int kQuads = kTile * kTile / 4 / 256;  ///< fours of halves that a thread writes
};

/// A tile of the source through shared memory, whose rows are padded by one against bank conflicts.
/// `column_scales` has made the scales.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) split_columns(
    __grid_constant__ SplitRowsParams const params, int row_tiles) {
  constexpr int kTile = Config::kTile;
  __shared__ float tile[kTile][kTile + 1];
  wait_for_predecessor();
  release_successor();
  // Rows of the source, which are columns of the result, and columns, which are its rows.
  int const first_row = int(blockIdx.x) % row_tiles * kTile;
  int const first_column = int(blockIdx.x) / row_tiles * kTile;
  int const lane = int(threadIdx.x) % kTile;
  int const step = int(threadIdx.x) / kTile;
  float values[Config::kLoads];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < Config::kLoads; ++i) {
    int const row = first_row + step + i * Config::kStep;
    bool const inside = row < params.columns && first_column + lane < params.rows;
    values[i] = inside ? params.source[row * params.stride + first_column + lane] : 0.0f;
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < Config::kLoads; ++i) {
    tile[step + i * Config::kStep][lane] = values[i];
  }
  __syncthreads();
  bool const spread = *params.spread != 0;
  int const warp = int(threadIdx.x) / 32;
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < Config::kQuads; ++i) {
    // A warp writes a line of each of two rows; two of its threads read of one bank.
    int const inner = (i * (Config::kThreads / 32) + warp) * 2 + int(threadIdx.x) % 32 / 16;
    int const outer = int(threadIdx.x) % 16 * 4;
    int const row = first_column + inner;
    int const column = first_row + outer;
    if (row < params.rows && column < params.pitch) {
      gemm::Fp16Scale const back = params.scales[row];
      gemm::Fp16Scale const scale = back.inverse();
      epilogue::Fragment<4> v{};
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4 && back.is_finite(); ++j) {
        v[j] = scale.apply(tile[outer + j][inner], factor_of(params, spread, column + j));
      }
      SplitTarget const target{params, row};
      store_halves(v, target.high() + column, target.low() + column);
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
