// Kernel for few rows: reads W once, at memory speed, with x in shared memory.
//
// Each warp owns kColumns columns of the output and all kRows rows of a row group; its lanes share out k, 128 bits a lane
// where the rows of W are aligned. Sums over k are therefore 32 interleaved chains, combined as a butterfly. The result is
// a partial matrix per split; the chain and sink follow in kernel::matrix_epilogue.
#pragma once

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
  static constexpr int kColumns = 4;                      ///< per warp: a load of x serves four columns
  static constexpr int kTileN = kWarps * kColumns;
  static constexpr int kChunk = kRows < 4 ? 2048 : 8192 / kRows;  ///< k held in shared memory, 32 KiB at most
  static constexpr int kCtasPerSm = 2;
  static constexpr int kUnroll = kRows < 8 ? 4 : 2;       ///< loads of W in flight, against 64 accumulators at 16 rows
};

template <class Tile>
struct SkinnyGemm {
  using Vector = epilogue::Fragment<Tile::kVector>;

  struct Params {
    Problem problem;
    Raster raster;      ///< row groups by column tiles by splits
    int k_per_split;    ///< a multiple of Tile::kChunk, or all of k
    float* partials;    ///< [splits, m, n]
  };

  struct SharedStorage {
    alignas(16) float x[Tile::kRows][Tile::kChunk];
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    Problem const& problem = params.problem;
    TileCoordinate const tile = params.raster.locate(blockIdx.x);
    int const lane = threadIdx.x % 32;
    int const first_row = tile.tile_m * Tile::kRows;
    int const first_column = tile.tile_n * Tile::kTileN + int(threadIdx.x) / 32 * Tile::kColumns;
    int const k_begin = tile.split * params.k_per_split;
    int const k_end = min(problem.k, k_begin + params.k_per_split);

    float const* weight[Tile::kColumns];
    CUTLASS_OPS_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      // Columns beyond the last read the last one again: no divergence, and nothing of them is stored.
      weight[c] = problem.weight + min(first_column + c, problem.n - 1) * problem.weight_stride;
    }

    float sums[Tile::kRows][Tile::kColumns] = {};
    for (int chunk = k_begin; chunk < k_end; chunk += Tile::kChunk) {
      int const length = min(Tile::kChunk, k_end - chunk);
      __syncthreads();
      stage_x(problem, storage, first_row, chunk, length);
      __syncthreads();
      if (length == Tile::kChunk) {
        CUTLASS_OPS_UNROLL_BY(Tile::kUnroll)
        for (int k = lane * Tile::kVector; k < Tile::kChunk; k += 32 * Tile::kVector) {
          accumulate(storage, weight, chunk, k, Tile::kVector, sums);
        }
      } else {
        for (int k = lane * Tile::kVector; k < length; k += 32 * Tile::kVector) {
          accumulate(storage, weight, chunk, k, length - k, sums);
        }
      }
    }
    store(params, tile.split, first_row, first_column, lane, sums);
  }

 private:
  /// x[first_row.., chunk..], zero outside the problem and beyond `length`.
  CUTLASS_OPS_DEVICE static void stage_x(Problem const& problem, SharedStorage& storage, int first_row, int chunk,
                                         int length) {
    CUTLASS_OPS_UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      float const* x = problem.x + (first_row + row) * problem.x_stride + chunk;
      bool const inside = first_row + row < problem.m;
      for (int k = threadIdx.x; k < Tile::kChunk; k += Tile::kThreads) {
        storage.x[row][k] = inside && k < length ? x[k] : 0.0f;
      }
    }
  }

  /// sums += x[:, k..] * W[column, k..] over one vector, of which `valid` elements lie inside k.
  CUTLASS_OPS_DEVICE static void accumulate(SharedStorage const& storage, float const* const (&weight)[Tile::kColumns],
                                            int chunk, int k, int valid, float (&sums)[Tile::kRows][Tile::kColumns]) {
    Vector w[Tile::kColumns];
    CUTLASS_OPS_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      w[c] = epilogue::load_columns<Tile::kVector>(weight[c] + chunk + k, valid, true);
    }
    CUTLASS_OPS_UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      Vector const x = epilogue::load_columns<Tile::kVector>(&storage.x[row][k], Tile::kVector, true);
      CUTLASS_OPS_UNROLL
      for (int c = 0; c < Tile::kColumns; ++c) {
        CUTLASS_OPS_UNROLL
        for (int i = 0; i < Tile::kVector; ++i) {
          sums[row][c] = fmaf(x[i], w[c][i], sums[row][c]);
        }
      }
    }
  }

  CUTLASS_OPS_DEVICE static void store(Params const& params, int split, int first_row, int first_column, int lane,
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
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    skinny_gemm(__grid_constant__ typename Gemm::Params const params) {
  __shared__ typename Gemm::SharedStorage storage;
  Gemm::run(params, storage);
}

}  // namespace gemm
}  // namespace cutlass_ops
