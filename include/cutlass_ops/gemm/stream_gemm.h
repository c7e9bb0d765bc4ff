// Stream-K kernel: as many CTAs as fit on the GPU, each taking one item of work after the other;
// the epilogue of a tile runs where it is completed, on the sum of its pieces.
#pragma once

#include <cstdint>

#include "cutlass/barrier.h"

#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/stream_k.h"

namespace cutlass_ops {
namespace gemm {

/// What CTAs leave for one another in global memory.
struct StreamExchange {
  float* partials;  ///< [slots][elements of a tile], 16-byte aligned
  int* published;   ///< [slots], 0 before the launch
  int* taken;       ///< items that have been, 0 before the launch
  int* taken_by;    ///< [slots], items that each SM has taken, 0 before the launch
  int slots;        ///< CTAs that run at the same time
};

template <class Mainloop_, class Tile_, class Chain, class Sink>
struct StreamGemm {
  using Mainloop = Mainloop_;
  using Tile = Tile_;
  using Epilogue = SimtEpilogue<Tile, Chain, Sink>;
  using Accumulators = typename Mainloop::Accumulators;
  using Vector = epilogue::Fragment<4>;
  static constexpr int kVectors = Accumulators::kElements / 4;
  static constexpr int kTileElements = Tile::kM * Tile::kN;

  static_assert(kVectors * 4 * Tile::kThreads == kTileElements, "every accumulator is exchanged");

  struct Params {
    Problem problem;
    Raster raster;
    StreamK cut;
    StreamExchange exchange;
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
  };

  union Tiles {
    typename Mainloop::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue;
  };

  /// What must outlive the mainloop waits here, for it leaves no registers.
  struct SharedStorage {
    Tiles tiles;
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
      accumulators.clear();
      multiply(params, storage, accumulators);
      finish(params, storage, accumulators);
    }
  }

 private:
  CUTLASS_OPS_DEVICE static void take(Params const& params, SharedStorage& storage) {
    leave_to_others(params);
    storage.item = atomicAdd(params.exchange.taken, 1);
    storage.done = 0;
  }

  /// An SM works at one rate, whichever of its CTAs has the work. One that has taken its part of
  /// the items leaves the others to SMs that have not, or it would be the last to end: 3000 in
  /// place of 2520 us at the headline size, whenever a CTA of one SM began its third item just
  /// before the slower one of another began its second. It does not wait for good: those SMs may be
  /// busy with other kernels.
  CUTLASS_OPS_DEVICE static void leave_to_others(Params const& params) {
    constexpr int kPatience = 256;  // times up to 2 us, when a CTA takes an item every 300 to 1900
    StreamExchange const& exchange = params.exchange;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (sm >= unsigned(exchange.slots)) {
      return;
    }
    int const items = params.cut.items();
    int const part = (items * Tile::kCtasPerSm + exchange.slots - 1) / exchange.slots;
    if (atomicAdd(exchange.taken_by + sm, 1) < part) {
      return;
    }
    int const volatile& taken = *exchange.taken;
    for (int i = 0; i < kPatience && taken < items; ++i) {
      __nanosleep(1000);
    }
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
    Mainloop::run(params.mainloop, params.problem, origin(params, piece.tile),
                  piece.begin * Tile::kK, min(params.problem.k, piece.end * Tile::kK),
                  storage.tiles.mainloop, accumulators);
  }

  /// Publishes a piece, or completes a tile with the pieces of others.
  CUTLASS_OPS_DEVICE static void finish(Params const& params, SharedStorage& storage,
                                        Accumulators& accumulators) {
    StreamPiece const piece = storage.piece;
    if (piece.slot != StreamPiece::kCompletes) {
      publish(params.exchange, piece.slot, accumulators);
    } else {
      collect(params, piece.tile, accumulators);
      Epilogue::run(params.epilogue, storage.tiles.epilogue, accumulators, params.problem.m,
                    params.raster.locate(piece.tile), origin(params, piece.tile));
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
                                         Accumulators const& accumulators) {
    Vector* const target = place(exchange, slot);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      Vector vector;
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        vector[j] = accumulators[4 * i + j];
      }
      target[i * Tile::kThreads] = vector;
    }
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
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        Vector const vector = source[i * Tile::kThreads];
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < 4; ++j) {
          accumulators[4 * i + j] += vector[j];
        }
      }
    }
  }
};

template <class Gemm>
__global__ void __launch_bounds__(Gemm::Tile::kThreads, Gemm::Tile::kCtasPerSm) stream_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  extern __shared__ __align__(16) unsigned char shared[];
  Gemm::run(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared));
}

}  // namespace gemm
}  // namespace cutlass_ops
