// Adapter of the "fp16x3" mainloop: takes a description's chain and sink over its accumulators.
//
// A lane has two neighbouring columns of every eight, of two rows. Each warp stages eight of its
// rows at a time in shared memory that no other warp touches, and then takes them one by one, or,
// if they are wanted as they are, has them copied while it goes on. (Stores from the registers, of
// eight columns of a row at a time, were slower: 179 us for 151 at 512 x 32768 x 512.)
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

/// Takes back the scales of a row of x and of one of W. Their factors are paired, so that either
/// product is about the root of them all: a result in float's range stays there on the way.
CUTLASS_OPS_DEVICE float scale_back(float z, Fp16Scale x, float w_first, float w_second) {
  return z * (x.first * w_first) * (x.second * w_second);
}

template <class Tile, class Chain, class Sink>
struct Fp16x3Epilogue {
  static constexpr int kRows = 8;              ///< a warp stages
  static constexpr int kPitch = Tile::kN + 8;  ///< floats: 16 lanes of 8 bytes in 32 banks
  static constexpr bool kCopies =
      std::is_same_v<Chain, epilogue::Chain<>> && std::is_same_v<Sink, epilogue::Store>;

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

  /// Those of a lane's two rows and of its columns. What is made of rows and columns beyond the
  /// last is not looked at.
  struct Scales {
    Fp16Scale x[2];
    float4 w[Tile::kN / 8];

    CUTLASS_OPS_DEVICE void load(Params const& params, int thread, TileCoordinate const& tile) {
      int const lane = thread % 32;
      int const row = tile.tile_m * Tile::kM + thread / 32 * 16 + lane / 4;
      int const column = tile.tile_n * Tile::kN + lane % 4 * 2;
      int const last = (params.columns - 1) / 2 * 2;
      CUTLASS_OPS_UNROLL
      for (int half = 0; half < 2; ++half) {
        x[half] = params.x_scales[min(row + half * kRows, params.rows - 1)];
      }
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Tile::kN / 8; ++i) {
        w[i] = *reinterpret_cast<float4 const*>(params.w_scales + min(column + 8 * i, last));
      }
    }
  };

  template <class Accumulators>
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, Scales const& scales,
                                     int thread, TileCoordinate const& tile) {
    int const lane = thread % 32;
    int const warp = thread / 32;
    float* const staged = storage.staged[warp];
    int const begin = tile.tile_n * Tile::kN / params.window;
    int const end = min(begin + Tile::kN / params.window, params.output_columns);
    Sink const sink = params.sink.at_split(tile.split);
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const first = tile.tile_m * Tile::kM + warp * 16 + half * kRows;
      finish();
      __syncwarp();  // the rows before these have been read
      stage(accumulators, scales, half, staged + lane / 4 * kPitch + lane % 4 * 2);
      if constexpr (kCopies) {
        if (sink.vectorized) {
          copy_rows(sink, staged, first, params.rows - first, begin, end, lane);
          continue;
        }
      }
      __syncwarp();
      CUTLASS_OPS_UNROLL_BY(1)
      for (int row = 0; row < kRows && first + row < params.rows; ++row) {
        StagedRow const source{staged + row * kPitch, tile.tile_n * Tile::kN};
        epilogue::visit_row<epilogue::fragment_width<Chain>()>(
            params.chain, sink, source, first + row, begin, end, tile.tile_n, lane);
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
  CUTLASS_OPS_DEVICE static void stage(Accumulators const& accumulators, Scales const& scales,
                                       int half, float* destination) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Tile::kN / 8; ++i) {
      float4 const w = scales.w[i];
      *reinterpret_cast<float2*>(destination + 8 * i) = {
          scale_back(accumulators(4 * i + 2 * half), scales.x[half], w.x, w.y),
          scale_back(accumulators(4 * i + 2 * half + 1), scales.x[half], w.z, w.w)};
    }
  }

  /// A row by each of the first lanes. Rows are whole fragments, 16-byte aligned.
  CUTLASS_OPS_DEVICE static void copy_rows(epilogue::Store const& sink, float const* staged,
                                           int first, int rows, int begin, int end, int lane) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what this lane has staged
    __syncwarp();
    if (lane < min(rows, kRows)) {
      float* const out = sink.out + std::int64_t{first + lane} * sink.columns + begin;
      cute::SM90_BULK_COPY_S2G::copy(staged + lane * kPitch, out, (end - begin) * 4);
    }
    cute::tma_store_arrive();
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
