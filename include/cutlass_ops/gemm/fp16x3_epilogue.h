// Adapter of the "fp16x3" mainloop: takes a description's chain and sink over its accumulators.
//
// A lane has two neighbouring columns of every eight, of two rows. Each warp stages eight of its
// rows at a time in shared memory that no other warp touches, and then takes them one by one.
#pragma once

#include "cutlass_ops/epilogue/row_visitor.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// Source over a staged row, scaled back.
struct ScaledRow {
  float const* row;  ///< shared memory, first column of the tile
  int first_column;
  Fp16Scale x_scale;
  Fp16Scale const* w_scales;  ///< of all columns
  int columns;

  /// The factors of both scales are paired, so that each product is about the root of them all: a
  /// result in float's range stays there on the way.
  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int, int column) const {
    auto z = epilogue::load_columns<kWidth>(row + column - first_column, kWidth, true);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      Fp16Scale const w_scale = column + i < columns ? w_scales[column + i] : Fp16Scale{};
      z[i] = z[i] * (x_scale.first * w_scale.first) * (x_scale.second * w_scale.second);
    }
    return z;
  }
};

template <class Tile, class Chain, class Sink>
struct Fp16x3Epilogue {
  static constexpr int kRows = 8;              ///< a warp stages
  static constexpr int kPitch = Tile::kN + 8;  ///< floats: 16 lanes of 8 bytes in 32 banks

  struct Params {
    Chain chain;
    Sink sink;
    int window;          ///< columns of the linear per output column; divides Tile::kN
    int output_columns;  ///< of the whole problem
    Fp16Scale const* x_scales;
    Fp16Scale const* w_scales;
    int rows;
    int columns;

    static Params make(Chain const& chain, Sink const& sink, Fp16Pairs const& x,
                       Fp16Pairs const& w) {
      return {chain,    sink,     chain.window(), w.rows / chain.window(),
              x.scales, w.scales, x.rows,         w.rows};
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

  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, int thread,
                                     TileCoordinate const& tile) {
    int const lane = thread % 32;
    int const warp = thread / 32;
    float* const staged = storage.staged[warp];
    int const begin = tile.tile_n * Tile::kN / params.window;
    int const tile_end = begin + Tile::kN / params.window;
    int const end = tile_end < params.output_columns ? tile_end : params.output_columns;
    Sink const sink = params.sink.at_split(tile.split);
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      __syncwarp();  // the rows before these have been read
      float* const destination = staged + lane / 4 * kPitch + lane % 4 * 2;
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Tile::kN / 8; ++i) {
        *reinterpret_cast<float2*>(destination + 8 * i) = {accumulators(4 * i + 2 * half),
                                                           accumulators(4 * i + 2 * half + 1)};
      }
      __syncwarp();
      int const first = tile.tile_m * Tile::kM + warp * 16 + half * kRows;
      CUTLASS_OPS_UNROLL_BY(1)
      for (int row = 0; row < kRows && first + row < params.rows; ++row) {
        ScaledRow const source{staged + row * kPitch, tile.tile_n * Tile::kN,
                               params.x_scales[first + row], params.w_scales, params.columns};
        epilogue::visit_row<epilogue::fragment_width<Chain>()>(
            params.chain, sink, source, first + row, begin, end, tile.tile_n, lane);
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
