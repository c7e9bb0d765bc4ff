// Adapter of the "fp16x3" mainloops: takes a description's chain and sink over its accumulators.
//
// A lane has two neighbouring columns of every eight, of two rows. Each warp stages eight of its
// rows at a time in shared memory that no other warp touches, and then takes them one by one, or,
// where they are short, together.
#pragma once

#include "cutlass_ops/epilogue/row_visitor.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/staged_row.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// Takes back the scales of a row of x and of one of W. Their factors are paired, so that either
/// product is about the root of them all: a result in float's range stays there on the way.
CUTLASS_OPS_DEVICE float scale_back(float z, Fp16Scale x, float w_first, float w_second) {
  return z * (x.first * w_first) * (x.second * w_second);
}

template <class Tile, class Chain, class Sink>
struct Fp16x3Epilogue {
  static constexpr int kRows = 8;  ///< a warp stages: the first or the second of each lane
  static constexpr int kPitch = Tile::kN + 8;  ///< floats: 16 lanes of 8 bytes in 32 banks

  struct Params {
    Chain chain;
    Sink sink;
    int window;          ///< columns of the linear per output column; divides Tile::kN
    int output_columns;  ///< of the whole problem
    Fp16Scale const* w_scales;
    int rows;
    int columns;

    static Params make(Chain const& chain, Sink const& sink, int rows, Fp16Pairs const& w) {
      return {chain, sink, chain.window(), w.rows / chain.window(), w.scales, rows, w.rows};
    }
  };

  /// Windows must not straddle column tiles.
  static Status can_implement(Chain const& chain) {
    if (Tile::kN % chain.window() != 0) {
      return {cudaErrorInvalidValue, "fp16x3 GEMM: the pooling window does not divide the tile"};
    }
    return {};
  }

  struct SharedStorage {
    alignas(16) float staged[Tile::kConsumers / 32][kRows * kPitch];
  };

  /// The scale of x's row is x_scales.of(half, row).
  template <class Accumulators, class RowScales>
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, RowScales const& x_scales,
                                     int thread, TileCoordinate const& tile) {
    int const lane = thread % 32;
    int const warp = thread / 32;
    float* const staged = storage.staged[warp];
    int const begin = tile.tile_n * Tile::kN / params.window;
    int const tile_end = begin + Tile::kN / params.window;
    int const end = tile_end < params.output_columns ? tile_end : params.output_columns;
    Sink const sink = params.sink.at_split(tile.split);
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const first = tile.tile_m * Tile::kM + warp * 16 + half * Tile::kHalfRows;
      int const own = first + lane / 4 * Tile::kLaneRows;
      __syncwarp();  // the rows before these have been read
      stage(params, accumulators, half, x_scales.of(half, min(own, params.rows - 1)),
            tile.tile_n * Tile::kN + lane % 4 * 2, staged + lane / 4 * kPitch + lane % 4 * 2);
      __syncwarp();
      auto const visit = [&](int i) {
        StagedRow const source{staged + i * kPitch, tile.tile_n * Tile::kN};
        epilogue::visit_row<epilogue::fragment_width<Chain>(), Tile::kRowLanes>(
            params.chain, sink, source, first + i * Tile::kLaneRows, begin, end, tile.tile_n,
            lane % Tile::kRowLanes);
      };
      if constexpr (Tile::kRowLanes == 32) {
        CUTLASS_OPS_UNROLL_BY(1)
        for (int i = 0; i < kRows && first + i * Tile::kLaneRows < params.rows; ++i) {
          visit(i);
        }
      } else {
        static_assert(kRows * Tile::kRowLanes == 32, "all rows at once");
        // Lanes beyond the last row repeat it, for they must take part.
        if (first < params.rows) {
          visit(min(lane / Tile::kRowLanes, (params.rows - 1 - first) / Tile::kLaneRows));
        }
      }
    }
  }

 private:
  /// This lane's part of a row, scaled back: two columns in eight, from `column` on. What it makes
  /// of columns beyond the last is not looked at.
  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void stage(Params const& params, Accumulators const& accumulators,
                                       int half, Fp16Scale x, int column, float* destination) {
    int const last = (params.columns - 1) / 2 * 2;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Tile::kN / 8; ++i) {
      if (i % 8 == 0) {
        asm volatile("" ::: "memory");  // eight loads at a time, for which there are registers
      }
      auto const w = *reinterpret_cast<float4 const*>(params.w_scales + min(column + 8 * i, last));
      *reinterpret_cast<float2*>(destination + 8 * i) = {
          scale_back(accumulators(4 * i + 2 * half), x, w.x, w.y),
          scale_back(accumulators(4 * i + 2 * half + 1), x, w.z, w.w)};
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
