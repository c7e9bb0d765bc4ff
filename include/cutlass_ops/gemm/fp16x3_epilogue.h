// Adapter of the "fp16x3" mainloops: takes a description's chain and sink over its accumulators.
//
// A lane has two neighbouring columns of every eight, of two rows. Each warp stages eight of its
// rows at a time in shared memory that no other warp touches, and then takes them one by one, or,
// where they are short, together. Rows that are wanted as they are it has copied while it goes on.
// (Stores from the registers, of
// eight columns of a row at a time, were slower: 178 us for 151 at 512 x 32768 x 512.)
#pragma once

#include <type_traits>

#include "cute/arch/copy_sm90_tma.hpp"

#include "cutlass_ops/epilogue/row_visitor.h"
#include "cutlass_ops/epilogue/store.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/staged_row.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

template <class Tile, class Chain, class Sink>
struct Fp16x3Epilogue {
  static constexpr int kRows = 8;  ///< a warp stages: the first or the second of each lane
  static constexpr int kPitch = Tile::kN + 8;  ///< floats: 16 lanes of 8 bytes in 32 banks
  static constexpr bool kCopies =
      std::is_same_v<Chain, epilogue::Chain<>> && std::is_same_v<Sink, epilogue::Store>;

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

  /// Those of a lane's columns, first factors and second ones. What is made of columns beyond the
  /// last is not looked at.
  struct ColumnScales {
    float4 pairs[Tile::kN / 8];

    CUTLASS_OPS_DEVICE void load(Params const& params, int thread, TileCoordinate const& tile) {
      int const column = tile.tile_n * Tile::kN + thread % 4 * 2;
      int const last = (params.columns - 1) / 2 * 2;
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Tile::kN / 8; ++i) {
        pairs[i] = *reinterpret_cast<float4 const*>(params.w_scales + min(column + 8 * i, last));
      }
    }
  };

  /// `rows`: the scales of this lane's two rows.
  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, RowScales const& rows,
                                     ColumnScales const& columns, int thread,
                                     TileCoordinate const& tile) {
    int const lane = thread % 32;
    int const warp = thread / 32;
    float* const staged = storage.staged[warp];
    int const begin = tile.tile_n * Tile::kN / params.window;
    int const end = min(begin + Tile::kN / params.window, params.output_columns);
    Sink const sink = params.sink.at_split(tile.split);
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const first = tile.tile_m * Tile::kM + warp * 16 + half * Tile::kHalfRows;
      int const count = (params.rows - 1 - first + Tile::kLaneRows) / Tile::kLaneRows;
      finish();
      __syncwarp();  // the rows before these have been read
      stage(accumulators, half, rows.of[half], columns, staged + lane / 4 * kPitch + lane % 4 * 2);
      if constexpr (kCopies) {
        if (sink.vectorized) {
          copy_rows(sink, staged, first, count, begin, end, lane);
          continue;
        }
      }
      __syncwarp();
      auto const visit = [&](int i) {
        StagedRow const source{staged + i * kPitch, tile.tile_n * Tile::kN};
        epilogue::visit_row<epilogue::fragment_width<Chain>(), Tile::kRowLanes>(
            params.chain, sink, source, first + i * Tile::kLaneRows, begin, end, tile.tile_n,
            lane % Tile::kRowLanes);
      };
      if constexpr (Tile::kRowLanes == 32) {
        CUTLASS_OPS_UNROLL_BY(1)
        for (int i = 0; i < kRows && i < count; ++i) {
          visit(i);
        }
      } else {
        static_assert(kRows * Tile::kRowLanes == 32, "all rows at once");
        // Lanes beyond the last row repeat it, for they must take part.
        if (first < params.rows) {
          visit(min(lane / Tile::kRowLanes, count - 1));
        }
      }
    }
  }

  /// Until no copy reads the staged rows any more: before they are written again, and at the end.
  CUTLASS_OPS_DEVICE static void finish() {
    if constexpr (kCopies) {
      cute::tma_store_wait<0>();
    }
  }

 private:
  /// A lane's part of the rows, scaled back: two columns in eight.
  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void stage(Accumulators const& accumulators, int half, Fp16Scale x,
                                       ColumnScales const& columns, float* destination) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Tile::kN / 8; ++i) {
      float4 const w = columns.pairs[i];
      *reinterpret_cast<float2*>(destination + 8 * i) = {
          scale_back(accumulators(4 * i + 2 * half), x, {w.x, w.y}),
          scale_back(accumulators(4 * i + 2 * half + 1), x, {w.z, w.w})};
    }
  }

  /// A row by each of the first lanes. Rows are whole fragments, 16-byte aligned.
  CUTLASS_OPS_DEVICE static void copy_rows(epilogue::Store const& sink, float const* staged,
                                           int first, int count, int begin, int end, int lane) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what this lane has staged
    __syncwarp();
    if (lane < min(count, kRows)) {
      int const row = first + lane * Tile::kLaneRows;
      float* const out = sink.out + std::int64_t{row} * sink.columns + begin;
      cute::SM90_BULK_COPY_S2G::copy(staged + lane * kPitch, out, (end - begin) * 4);
    }
    cute::tma_store_arrive();
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
