// Adapter of the SIMT mainloops: takes a description's chain and sink over the accumulators
// of a CTA.
//
// The accumulators of a thread are scattered over the tile in 4x4 blocks. They are staged through
// shared memory a slice of rows at a time; then each warp takes whole rows of the slice, so that a
// fragment is consecutive columns whatever the mainloop's lane layout, windows of the chain are
// pulled from shared memory at run-time length, and stores are 512 bytes a warp. The mapping is
// derived from the warp operator's own policy: CUTLASS's EVT layout is that of the tensor-op thread
// map and puts most coordinates in the wrong place under SIMT.
#pragma once

#include <type_traits>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/warp/fragment_iterator_simt.h"
#include "cutlass/epilogue/warp/simt_policy.h"
#include "cutlass/gemm/gemm.h"

#include "cutlass_ops/epilogue/row_visitor.h"
#include "cutlass_ops/epilogue/store.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/staged_row.h"
#include "cutlass_ops/gemm/thread_group.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// How a CTA tile is staged, slice by slice: where a thread writes its accumulators, and where the
/// rows of a slice lie in the tile. Host-testable: tests/cpp/simt_staging.cu runs these functions.
template <class Tile>
struct SimtStaging {
  using WarpMma = typename Tile::WarpMma;
  using LanePolicy = typename WarpMma::Policy;
  using WarpShape = cutlass::gemm::GemmShape<Tile::kWarpM, Tile::kWarpN, Tile::kK>;
  using Policy = cutlass::epilogue::warp::SimtPolicy<WarpShape, WarpMma, cutlass::layout::RowMajor,
                                                     LanePolicy>;
  using AccumulatorRows =
      cutlass::epilogue::warp::FragmentIteratorSimt<WarpShape, WarpMma, cutlass::layout::RowMajor,
                                                    LanePolicy>;

  static constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
  static constexpr int kLaneRows = LanePolicy::WarpShape::kRow;
  static constexpr int kLaneColumns = LanePolicy::WarpShape::kColumn;
  static constexpr int kBlock =
      LanePolicy::LaneMmaShape::kM;  ///< accumulators come in blocks of 4 x 4
  static constexpr int kWarpRows =
      kLaneRows * kBlock;  ///< consecutive rows that a warp adds to a slice
  static constexpr int kRows = kWarpsM * kWarpRows;  ///< rows of a slice
  static constexpr int kSlices = Tile::kWarpM / kWarpRows;
  static constexpr int kPitch =
      Tile::kN + 4;  ///< floats; keeps 128-bit alignment, spreads the banks

  static_assert(kBlock == 4 && LanePolicy::LaneMmaShape::kN == 4,
                "the staging moves blocks of 4 x 4");
  static_assert(kSlices * kRows == Tile::kM, "the slices cover the tile");
  static_assert(sizeof(float) * kRows * kPitch <= 48 * 1024,
                "a slice needs no leave for more shared memory");

  /// Row of the CTA tile that slice `slice` holds at `row`.
  CUTLASS_OPS_HOST_DEVICE static constexpr int tile_row(int slice, int row) {
    return row / kWarpRows * Tile::kWarpM + slice * kWarpRows + row % kWarpRows;
  }

  /// Row and column of a slice at which the first accumulator of `thread` is staged.
  CUTLASS_OPS_HOST_DEVICE static cutlass::MatrixCoord place(int thread) {
    int const warp = thread / 32;
    int const warp_m = warp % kWarpsM;  // the order in which CUTLASS's MmaBase places warps
    int const warp_n = warp / kWarpsM;
    auto const lane = LanePolicy::get_lane_layout().inverse(thread % 32);
    return {warp_m * kWarpRows + lane.row() * kBlock, warp_n * Tile::kWarpN + lane.column() * 4};
  }

  /// One accumulator row of a thread, in blocks of four columns a warp's width of lanes apart:
  /// `visit(column, block)`, with columns from the thread's first on.
  template <class Visit>
  CUTLASS_OPS_HOST_DEVICE static void visit_blocks(AccumulatorRows const& rows, Visit visit) {
    typename AccumulatorRows::Fragment fragment;
    rows.load(fragment);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Policy::kAccessesPerIteration; ++i) {
      epilogue::Fragment<4> block;
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        block[j] = fragment[4 * i + j];
      }
      visit(i * kLaneColumns * 4, block);
    }
  }

  CUTLASS_OPS_HOST_DEVICE static void stage(AccumulatorRows const& rows, float* destination) {
    visit_blocks(rows, [&](int column, epilogue::Fragment<4> const& block) {
      epilogue::store_columns<4>(destination + column, block, 4, true);
    });
  }
};

template <class Tile, class Chain, class Sink, class Threads = CtaThreads>
struct SimtEpilogue {
  using Staging = SimtStaging<Tile>;
  using Accumulators = typename Tile::WarpMma::FragmentC;

  struct Params {
    Chain chain;
    Sink sink;
    int window;          ///< columns of the linear per output column; divides Tile::kN
    int output_columns;  ///< of the whole problem

    static Params make(Chain const& chain, Sink const& sink, int columns) {
      return {chain, sink, chain.window(), columns / chain.window()};
    }
  };

  /// Windows must not straddle column tiles.
  static Status can_implement(Chain const& chain) {
    if (Tile::kN % chain.window() != 0) {
      return {cudaErrorInvalidValue, "SIMT GEMM: the pooling window does not divide the tile"};
    }
    return {};
  }

  struct SharedStorage {
    alignas(16) float staged[Staging::kRows * Staging::kPitch];
  };

  /// Without an epilogue nothing needs whole rows.
  static constexpr bool kStoresAccumulators =
      std::is_same_v<Chain, epilogue::Chain<>> && std::is_same_v<Sink, epilogue::Store>;

  /// All `Threads` call it. Of the accumulators, whose place is `origin`, those before the tile
  /// belong to another CTA.
  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage,
                                     Accumulators const& accumulators, int rows,
                                     TileCoordinate const& tile, TileOrigin origin) {
    if constexpr (kStoresAccumulators) {
      store(params, accumulators, rows, tile, origin);
    } else {
      stage_and_visit(params, storage, accumulators, rows, tile, origin);
    }
  }

 private:
  /// Straight from registers, 128 bytes of a row at a time. What a tile that was moved back has in
  /// common with the one before it is left to that one: stream-K may cut their k differently.
  CUTLASS_OPS_DEVICE static void store(Params const& params, Accumulators const& accumulators,
                                       int rows, TileCoordinate const& tile, TileOrigin origin) {
    auto const place = Staging::place(Threads::index());
    int const row = origin.row + Staging::tile_row(0, place.row());
    int const column = origin.column + place.column();
    Sink const sink = params.sink.at_split(tile.split);
    float* const out = sink.out + std::int64_t{row} * sink.columns + column;
    int const first_row = tile.tile_m * Tile::kM - row;
    int const first_column = tile.tile_n * Tile::kN - column;
    int const end = sink.columns - column;
    // One question instead of one for every block: the last one is the farthest to the right.
    bool const whole = origin.column == tile.tile_n * Tile::kN &&
                       Tile::kWarpN - Staging::kLaneColumns * 4 + 4 <= end;
    if (sink.vectorized && whole) {
      store_rows(accumulators, out, sink.columns, first_row, rows - row,
                 [](float* target, int, epilogue::Fragment<4> const& block) {
                   epilogue::store_columns<4>(target, block, 4, true);
                 });
    } else {
      store_rows(accumulators, out, sink.columns, first_row, rows - row,
                 [=](float* target, int offset, epilogue::Fragment<4> const& block) {
                   CUTLASS_OPS_UNROLL
                   for (int i = 0; i < 4; ++i) {
                     if (offset + i >= first_column && offset + i < end) {
                       target[i] = block[i];
                     }
                   }
                 });
    }
  }

  /// The rows in [first, end) of those that this thread has from `out` on: `write(target, offset,
  /// block)` for each block, `offset` columns from the thread's first.
  template <class Write>
  CUTLASS_OPS_DEVICE static void store_rows(Accumulators const& accumulators, float* out,
                                            int columns, int first, int end, Write write) {
    typename Staging::AccumulatorRows iterator(accumulators);
    CUTLASS_OPS_UNROLL
    for (int slice = 0; slice < Staging::kSlices; ++slice) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Staging::kBlock; ++i, ++iterator) {
        int const row = slice * Staging::kWarpRows + i;
        if (Threads::finishes(slice) && row >= first && row < end) {
          float* const place = out + std::int64_t{row} * columns;
          Staging::visit_blocks(iterator, [&](int offset, epilogue::Fragment<4> const& block) {
            write(place + offset, offset, block);
          });
        }
      }
    }
  }

  CUTLASS_OPS_DEVICE static void stage_and_visit(Params const& params, SharedStorage& storage,
                                                 Accumulators const& accumulators, int rows,
                                                 TileCoordinate const& tile, TileOrigin origin) {
    int const lane = Threads::index() % 32;
    int const warp = Threads::index() / 32;
    auto const place = Staging::place(Threads::index());
    float* const destination = storage.staged + place.row() * Staging::kPitch + place.column();

    int const begin = tile.tile_n * Tile::kN / params.window;
    int const tile_end = begin + Tile::kN / params.window;
    int const end = tile_end < params.output_columns ? tile_end : params.output_columns;
    Sink const sink = params.sink.at_split(tile.split);

    typename Staging::AccumulatorRows iterator(accumulators);
    // Unrolled: accumulators are registers and take compile-time indices only.
    CUTLASS_OPS_UNROLL
    for (int slice = 0; slice < Staging::kSlices; ++slice) {
      bool const finishes = Threads::finishes(slice);
      if (finishes) {
        Threads::synchronize();  // the mainloop, or the slice before this one, has been read
      }
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Staging::kBlock; ++i, ++iterator) {
        if (finishes) {
          Staging::stage(iterator, destination + i * Staging::kPitch);
        }
      }
      if (!finishes) {
        continue;
      }
      Threads::synchronize();
      for (int row = warp; row < Staging::kRows; row += Tile::kThreads / 32) {
        int const output_row = origin.row + Staging::tile_row(slice, row);
        if (output_row >= tile.tile_m * Tile::kM && output_row < rows) {
          StagedRow const source{storage.staged + row * Staging::kPitch, origin.column};
          epilogue::visit_row<epilogue::fragment_width<Chain>()>(
              params.chain, sink, source, output_row, begin, end, tile.tile_n, lane);
        }
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
