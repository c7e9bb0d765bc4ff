// Kernel for few rows: reads W once, at memory speed, with x in shared memory.
//
// x is staged by cp.async, one chunk ahead: staged through registers, the latency of its rows took
// longer than the whole product at 16 rows (320 us in place of the 63 us that reading W takes).
//
// Each warp owns kColumns columns of the output and all kRows rows of a row group; its lanes share
// out k, 128 bits a lane where the rows of W are aligned. Sums over k are therefore 32 interleaved
// chains, combined as a butterfly. The result is a partial matrix per split; the chain and sink
// follow in kernel::matrix_epilogue.
#pragma once

#include "cutlass/arch/memory_sm80.h"

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/gemm/problem.h"

namespace cutlass_ops {
namespace gemm {

/// kRows rows of x at a time (a power of two up to 16); kVector floats per load of W.
template <int kRows_, int kVector_>
struct SkinnyTile {
  static constexpr int kRows = kRows_;
  static constexpr int kVector = kVector_;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = 4;  ///< per warp: a load of x serves four columns
  static constexpr int kTileN = kWarps * kColumns;
  static constexpr int kChunk = 4096 / kRows;  ///< k held in shared memory; two chunks take 32 KiB
  static constexpr int kSteps = kChunk / (32 * kVector);
  static constexpr int kCtasPerSm = 2;
  /// Loads of W in flight, against 64 accumulators at 16 rows.
  static constexpr int kUnroll = kRows < 8 ? 4 : 2;
};

template <class Tile>
struct SkinnyGemm {
  using Vector = epilogue::Fragment<Tile::kVector>;

  struct Params {
    Problem problem;
    Raster raster;      ///< row groups by column tiles by splits
    int k_per_split;    ///< a multiple of 4
    bool x_vectorized;  ///< rows of x are 16-byte aligned
    float* partials;    ///< [splits, m, n]
  };

  struct SharedStorage {
    alignas(16) float x[2][Tile::kRows][Tile::kChunk];
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    Problem const& problem = params.problem;
    TileCoordinate const tile = params.raster.locate(blockIdx.x);
    int const lane = threadIdx.x % 32;
    int const first_row = tile.tile_m * Tile::kRows;
    // The last warp steps back so that it never reads beyond the last row of W; the columns that
    // two warps then share get the same bits from both.
    int const first_column =
        max(0, min(tile.tile_n * Tile::kTileN + int(threadIdx.x) / 32 * Tile::kColumns,
                   problem.n - Tile::kColumns));
    int const k_begin = tile.split * params.k_per_split;
    int const k_end = min(problem.k, k_begin + params.k_per_split);

    float const* const weight = problem.weight + first_column * problem.weight_stride;
    std::int64_t column_offsets[Tile::kColumns];  // the same in every thread: uniform registers
    CUTLASS_OPS_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      column_offsets[c] = min(c, problem.n - 1) * problem.weight_stride;
    }

    float sums[Tile::kRows][Tile::kColumns] = {};
    int stage = 0;
    stage_x(params, storage.x[stage], first_row, k_begin, k_end);
    for (int chunk = k_begin; chunk < k_end; chunk += Tile::kChunk, stage ^= 1) {
      cutlass::arch::cp_async_wait<0>();
      __syncthreads();  // this chunk has arrived, and the other stage has been read by all
      stage_x(params, storage.x[stage ^ 1], first_row, chunk + Tile::kChunk, k_end);
      if (k_end - chunk >= Tile::kChunk) {
        CUTLASS_OPS_UNROLL_BY(Tile::kUnroll)
        for (int step = 0; step < Tile::kSteps; ++step) {
          int const k = (step * 32 + lane) * Tile::kVector;
          accumulate(storage.x[stage], weight + chunk, column_offsets, k, Tile::kVector, sums);
        }
      } else {
        for (int k = lane * Tile::kVector; k < k_end - chunk; k += 32 * Tile::kVector) {
          accumulate(storage.x[stage], weight + chunk, column_offsets, k, k_end - chunk - k, sums);
        }
      }
    }
    store(params, tile.split, first_row, first_column, lane, sums);
  }

 private:
  using Chunk = float[Tile::kRows][Tile::kChunk];

  /// Starts the copy of x[first_row.., chunk..]; zero outside the problem.
  CUTLASS_OPS_DEVICE static void stage_x(Params const& params, Chunk& destination, int first_row,
                                         int chunk, int k_end) {
    if (chunk >= k_end) {
      return;
    }
    if (params.x_vectorized) {
      copy_x<4>(params.problem, destination, first_row, chunk, k_end);
    } else {
      copy_x<1>(params.problem, destination, first_row, chunk, k_end);
    }
    cutlass::arch::cp_async_fence();
  }

  template <int kWidth>
  CUTLASS_OPS_DEVICE static void copy_x(Problem const& problem, Chunk& destination, int first_row,
                                        int chunk, int k_end) {
    constexpr int kCopies = Tile::kRows * Tile::kChunk / (Tile::kThreads * kWidth);
    CUTLASS_OPS_UNROLL_BY(4)
    for (int i = 0; i < kCopies; ++i) {
      int const element = (i * Tile::kThreads + int(threadIdx.x)) * kWidth;
      int const row = element / Tile::kChunk;
      int const k = element % Tile::kChunk;
      bool const inside = first_row + row < problem.m && chunk + k < k_end;
      // A vector never straddles the end of k: x_vectorized says that k, and so every share of it,
      // is a multiple of 4.
      float const* source =
          problem.x + (inside ? (first_row + row) * problem.x_stride + chunk + k : 0);
      cutlass::arch::cp_async_zfill<4 * kWidth>(&destination[row][k], source, inside);
    }
  }

  /// sums += x[:, k..] * W[column, k..] over one vector, of which `valid` elements lie inside k.
  CUTLASS_OPS_DEVICE static void accumulate(Chunk const& x_chunk, float const* weight,
                                            std::int64_t const (&column_offsets)[Tile::kColumns],
                                            int k, int valid,
                                            float (&sums)[Tile::kRows][Tile::kColumns]) {
    Vector w[Tile::kColumns];
    CUTLASS_OPS_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      w[c] = epilogue::load_columns<Tile::kVector>(weight + column_offsets[c] + k, valid, true);
    }
    CUTLASS_OPS_UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      Vector const x = epilogue::load_columns<Tile::kVector>(&x_chunk[row][k], Tile::kVector, true);
      // x stays put while the columns change, to and fro: x[i] and w[c][i] are in one register bank
      // always, so that fetching both for every FFMA would take two cycles.
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Tile::kVector; ++i) {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < Tile::kColumns; ++j) {
          int const c = i % 2 == 0 ? j : Tile::kColumns - 1 - j;
          sums[row][c] = fmaf(x[i], w[c][i], sums[row][c]);
        }
      }
    }
  }

  CUTLASS_OPS_DEVICE static void store(Params const& params, int split, int first_row,
                                       int first_column, int lane,
                                       float const (&sums)[Tile::kRows][Tile::kColumns]) {
    std::int64_t const m = params.problem.m;
    int const n = params.problem.n;
    CUTLASS_OPS_UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      CUTLASS_OPS_UNROLL
      for (int c = 0; c < Tile::kColumns; ++c) {
        float const sum = epilogue::warp_reduce<epilogue::SumMonoid>(sums[row][c]);
        if (lane == 0 && first_row + row < m && first_column + c < n) {
          params.partials[(split * m + first_row + row) * n + first_column + c] = sum;
        }
      }
    }
  }
};

template <class Gemm, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm) skinny_gemm(
    __grid_constant__ typename Gemm::Params const params) {
  wait_for_predecessor();
  release_successor();
  __shared__ typename Gemm::SharedStorage storage;
  Gemm::run(params, storage);
}

}  // namespace gemm
}  // namespace cutlass_ops
