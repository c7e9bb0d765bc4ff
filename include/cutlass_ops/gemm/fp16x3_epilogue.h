// Adapter of the "fp16x3" mainloop: takes a description's chain and sink over its accumulators.
//
// A lane has two neighbouring columns of every eight, of two rows. What goes to memory column by
// column goes there from the registers, once two lanes have exchanged a half of what they have, so
// that each has four columns of one row. Windows and reductions want whole rows: for them each warp
// stages eight of its rows at a time in shared memory that no other warp touches, and then takes
// them one by one.
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

/// Source of the four columns that a thread has.
struct RegisterFragment {
  epilogue::Fragment<4> z;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int, int) const {
    static_assert(kWidth == 4, "the chain goes by fragments");
    return z;
  }
};

template <class Tile, class Chain, class Sink>
struct Fp16x3Epilogue {
  static constexpr bool kDirect = !Sink::kReduces && !Chain::kHasWindow;
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
    alignas(16) float staged[Tile::kConsumers / 32][kDirect ? 4 : kRows * kPitch];
  };

  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, int thread,
                                     TileCoordinate const& tile) {
    if constexpr (kDirect) {
      visit_fragments(params, accumulators, thread, tile);
    } else {
      visit_rows(params, storage, accumulators, thread, tile);
    }
  }

 private:
  /// The scales of two columns of W. Those beyond the last are not looked at.
  CUTLASS_OPS_DEVICE static float4 w_scales_at(Params const& params, int column) {
    int const last = (params.columns - 1) / 2 * 2;
    return *reinterpret_cast<float4 const*>(params.w_scales + min(column, last));
  }

  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void visit_fragments(Params const& params,
                                                 Accumulators const& accumulators, int thread,
                                                 TileCoordinate const& tile) {
    int const lane = thread % 32;
    int const upper = tile.tile_m * Tile::kM + thread / 32 * 16 + lane / 4;
    int const lower = upper + kRows;
    bool const takes_lower = lane % 2 != 0;
    int const row = takes_lower ? lower : upper;
    Sink const sink = params.sink.at_split(tile.split);
    typename Sink::State state;
    Fp16Scale const x_upper = params.x_scales[min(upper, params.rows - 1)];
    Fp16Scale const x_lower = params.x_scales[min(lower, params.rows - 1)];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Tile::kN / 8; ++i) {
      int const first = tile.tile_n * Tile::kN + 8 * i;
      float4 const w = w_scales_at(params, first + lane % 4 * 2);
      float2 const above{scale_back(accumulators(4 * i), x_upper, w.x, w.y),
                         scale_back(accumulators(4 * i + 1), x_upper, w.z, w.w)};
      float2 const below{scale_back(accumulators(4 * i + 2), x_lower, w.x, w.y),
                         scale_back(accumulators(4 * i + 3), x_lower, w.z, w.w)};
      float2 const mine = takes_lower ? below : above;
      float2 other = takes_lower ? above : below;
      other = {__shfl_xor_sync(0xffffffffu, other.x, 1), __shfl_xor_sync(0xffffffffu, other.y, 1)};
      RegisterFragment const source{takes_lower
                                        ? epilogue::Fragment<4>{other.x, other.y, mine.x, mine.y}
                                        : epilogue::Fragment<4>{mine.x, mine.y, other.x, other.y}};
      int const column = first + lane % 4 / 2 * 4;
      if (row < params.rows && column < params.columns) {
        sink.visit(state, params.chain.template evaluate<4>(source, row, column), row, column,
                   params.columns - column);
      }
    }
  }

  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void visit_rows(Params const& params, SharedStorage& storage,
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
      int const first = tile.tile_m * Tile::kM + warp * 16 + half * kRows;
      __syncwarp();  // the rows before these have been read
      stage(params, accumulators, half, min(first + lane / 4, params.rows - 1),
            tile.tile_n * Tile::kN + lane % 4 * 2, staged + lane / 4 * kPitch + lane % 4 * 2);
      __syncwarp();
      CUTLASS_OPS_UNROLL_BY(1)
      for (int row = 0; row < kRows && first + row < params.rows; ++row) {
        StagedRow const source{staged + row * kPitch, tile.tile_n * Tile::kN};
        epilogue::visit_row<epilogue::fragment_width<Chain>()>(
            params.chain, sink, source, first + row, begin, end, tile.tile_n, lane);
      }
    }
  }

  /// This lane's part of a row, scaled back: two columns in eight, from `column` on.
  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void stage(Params const& params, Accumulators const& accumulators,
                                       int half, int row, int column, float* destination) {
    Fp16Scale const x = params.x_scales[row];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Tile::kN / 8; ++i) {
      if (i % 8 == 0) {
        asm volatile("" ::: "memory");  // eight loads at a time, for which there are registers
      }
      float4 const w = w_scales_at(params, column + 8 * i);
      *reinterpret_cast<float2*>(destination + 8 * i) = {
          scale_back(accumulators(4 * i + 2 * half), x, w.x, w.y),
          scale_back(accumulators(4 * i + 2 * half + 1), x, w.z, w.w)};
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
