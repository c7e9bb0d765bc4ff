// Stream-K kernel: a sliced-K CTA on every SM, each taking one item of work after the other; the
// epilogue of a tile runs where it is completed, on the sum of its pieces.
#pragma once

#include <cstdint>

#include "cutlass/barrier.h"

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/sliced_mainloop.h"
#include "cutlass_ops/gemm/stream_k.h"

namespace cutlass_ops {
namespace gemm {

/// What CTAs leave for one another in global memory.
struct StreamExchange {
  float* partials;  ///< [slots][elements of a tile], 16-byte aligned
  int* published;   ///< [slots], 0 before the launch
  int* taken;       ///< items that have been, 0 before the launch
};

template <class GroupMainloop, class Tile_, class Chain, class Sink>
struct StreamGemm {
  using Mainloop = SlicedMainloop<GroupMainloop, Tile_>;
  using Tile = Tile_;
  using Cta = typename Mainloop::Cta;
  using Threads = typename Mainloop::Threads;
  using Epilogue = SimtEpilogue<Tile, Chain, Sink, Threads>;
  using Accumulators = typename Mainloop::Accumulators;
  using Vector = typename Mainloop::Vector;
  static constexpr int kTileElements = Tile::kM * Tile::kN;

  static_assert(Epilogue::Staging::kSlices == 2,
                "half of the accumulators are a slice of the rows");
  static_assert(Mainloop::kVectors * 4 * Cta::kThreads == kTileElements,
                "every finished accumulator is exchanged");

  struct Params {
    Problem problem;
    Raster raster;
    StreamK cut;
    StreamExchange exchange;
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
  };

  /// What must outlive the mainloop waits here, for it leaves no registers.
  struct SharedStorage {
    typename Mainloop::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue[2];  ///< of each group
    StreamPiece piece;
    int item;
    int done;  ///< pieces of the item
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    if (threadIdx.x == 0) {
      take(params, storage);
    }
    while (next_piece(params, storage)) {
      Accumulators accumulators;
      multiply(params, storage, accumulators);
      finish(params, storage, accumulators);
    }
  }

 private:
  CUTLASS_OPS_DEVICE static void take(Params const& params, SharedStorage& storage) {
    storage.item = atomicAdd(params.exchange.taken, 1);
    storage.done = 0;
  }

  CUTLASS_OPS_DEVICE static bool next_piece(Params const& params, SharedStorage& storage) {
    if (threadIdx.x == 0) {
      while (storage.item < params.cut.items() &&
             !params.cut.piece(storage.item, storage.done, storage.piece)) {
        take(params, storage);
      }
      ++storage.done;
    }
    __syncthreads();
    return storage.item < params.cut.items();
  }

  CUTLASS_OPS_DEVICE static void multiply(Params const& params, SharedStorage& storage,
                                          Accumulators& accumulators) {
    StreamPiece const piece = storage.piece;
    KRange const range{piece.begin * Tile::kK, min(params.problem.k, piece.end * Tile::kK)};
    Mainloop::run(params.mainloop, params.problem, origin(params, piece.tile), range,
                  storage.mainloop, accumulators);
  }

  /// Publishes a piece, or completes a tile with the pieces of others.
  CUTLASS_OPS_DEVICE static void finish(Params const& params, SharedStorage& storage,
                                        Accumulators& accumulators) {
    StreamPiece const piece = storage.piece;
    if (piece.slot != StreamPiece::kCompletes) {
      publish(params.exchange, piece.slot, accumulators);
    } else {
      collect(params, piece.tile, accumulators);
      Epilogue::run(params.epilogue, storage.epilogue[Threads::group()], accumulators,
                    params.problem.m, params.raster.locate(piece.tile), origin(params, piece.tile));
    }
    __syncthreads();  // the staged rows and the piece have been read
  }

  CUTLASS_OPS_DEVICE static TileOrigin origin(Params const& params, int tile) {
    return Mainloop::origin(params.problem, params.raster.locate(tile));
  }

  /// Thread by thread: the one that collects holds the same accumulators.
  CUTLASS_OPS_DEVICE static Vector* place(StreamExchange const& exchange, int slot) {
    return reinterpret_cast<Vector*>(exchange.partials + std::int64_t{slot} * kTileElements) +
           threadIdx.x;
  }

  CUTLASS_OPS_DEVICE static void publish(StreamExchange const& exchange, int slot,
                                         Accumulators& accumulators) {
    Vector* const target = place(exchange, slot);
    Mainloop::visit_finished(
        accumulators, [&](int i, Vector const& vector) { target[i * Cta::kThreads] = vector; });
    cutlass::Barrier::arrive_inc(exchange.published, threadIdx.x, slot);
  }

  /// Adds the published pieces of a tile, always in the same order.
  CUTLASS_OPS_DEVICE static void collect(Params const& params, int tile,
                                         Accumulators& accumulators) {
    int const pieces = params.cut.published(tile);
    CUTLASS_OPS_UNROLL_BY(1)
    for (int index = 0; index < pieces; ++index) {
      int const slot = params.cut.slot(tile, index);
      cutlass::Barrier::wait_eq(params.exchange.published, threadIdx.x, slot, 1);
      Vector const* const source = place(params.exchange, slot);
      Mainloop::visit_finished(accumulators,
                               [&](int i, Vector& vector) { vector += source[i * Cta::kThreads]; });
    }
  }
};

template <class Gemm>
__global__ void __launch_bounds__(Gemm::Cta::kThreads, Gemm::Cta::kCtasPerSm) stream_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  wait_for_predecessor();
  extern __shared__ __align__(16) unsigned char shared[];
  Gemm::run(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared));
}

}  // namespace gemm
}  // namespace cutlass_ops
