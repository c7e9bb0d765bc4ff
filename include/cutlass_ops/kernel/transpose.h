// The transpose of a matrix, at memory speed: what backward splits into halves.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

template <int kTile_, int kThreads_>
struct TransposeConfig {
  static constexpr int kTile = kTile_;
  static constexpr int kThreads = kThreads_;
};

struct TransposeParams {
  float const* source;  ///< [rows, columns]
  std::int64_t stride;  ///< elements
  float* out;           ///< [columns, rows], contiguous
  int rows;
  int columns;
  int row_tiles;
};

/// A tile through shared memory, whose rows are padded by one: both ways without bank conflicts.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) transpose(
    __grid_constant__ TransposeParams const params) {
  constexpr int kTile = Config::kTile;
  constexpr int kStep = Config::kThreads / kTile;
  __shared__ float tile[kTile][kTile + 1];
  wait_for_predecessor();
  release_successor();
  int const first_row = int(blockIdx.x % params.row_tiles) * kTile;
  int const first_column = int(blockIdx.x / params.row_tiles) * kTile;
  int const lane = threadIdx.x % kTile;
  int const step = threadIdx.x / kTile;
  float values[kTile / kStep];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kTile / kStep; ++i) {
    int const row = first_row + step + i * kStep;
    bool const inside = row < params.rows && first_column + lane < params.columns;
    values[i] = inside ? params.source[row * params.stride + first_column + lane] : 0.0f;
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kTile / kStep; ++i) {
    tile[step + i * kStep][lane] = values[i];
  }
  __syncthreads();
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kTile / kStep; ++i) {
    int const column = first_column + step + i * kStep;
    if (column < params.columns && first_row + lane < params.rows) {
      params.out[std::int64_t{column} * params.rows + first_row + lane] =
          tile[lane][step + i * kStep];
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
