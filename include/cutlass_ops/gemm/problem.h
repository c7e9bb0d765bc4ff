// The linear layer as the GEMM kernels see it, and the cut of its work into CTAs.
#pragma once

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// z = x Wᵀ: x is [m, k], W is [n, k], both with unit stride along k, but where halves are made of
/// them: those may be transposed, with unit stride between rows. Strides count elements and may
/// be 0.
struct Problem {
  float const* x;
  float const* weight;
  int m, n, k;
  std::int64_t x_stride;
  std::int64_t weight_stride;
  std::int64_t x_step = 1;  ///< along k
  std::int64_t weight_step = 1;

  bool transposed() const { return x_step != 1 || weight_step != 1; }

  /// Whether every four k from a multiple of four on are 16-byte aligned in x and W.
  bool vectors_of_k() const {
    return k % 4 == 0 && x_stride % 4 == 0 && weight_stride % 4 == 0 && epilogue::is_aligned(x) &&
           epilogue::is_aligned(weight);
  }
};

/// Place of a CTA: its tile of the output and its share of k.
struct TileCoordinate {
  int tile_m, tile_n, split;
};

/// A share of k, [begin, end); empty where the shares before it have reached the end.
struct KRange {
  int begin, end;

  CUTLASS_OPS_HOST_DEVICE static KRange of(Problem const& problem, int split, int k_per_split) {
    // In 64 bits: shares are rounded up, so that the last ones may begin beyond 2^31.
    std::int64_t const begin = std::int64_t{split} * k_per_split;
    std::int64_t const end = begin + k_per_split;
    return {begin < problem.k ? int(begin) : problem.k, end < problem.k ? int(end) : problem.k};
  }
};

/// First row and column of the linear's output that a CTA's accumulators hold.
struct TileOrigin {
  int row, column;
};

/// Maps a linear CTA index onto tiles and splits. CTAs that run at the same time cover a block of
/// `kGroup` row tiles by as many column tiles as fit, so that x and W are both read from L2; a grid
/// in x alone has no 65 535 limit.
struct Raster {
  static constexpr int kGroup = 16;

  int tiles_m, tiles_n, splits;

  template <class Tile>
  static Raster of(Problem const& problem, int splits) {
    return {int(ceil_div(problem.m, Tile::kM)), int(ceil_div(problem.n, Tile::kN)), splits};
  }

  CUTLASS_OPS_HOST_DEVICE std::int64_t ctas() const {
    return std::int64_t{tiles_m} * tiles_n * splits;
  }

  CUTLASS_OPS_HOST_DEVICE TileCoordinate locate(unsigned cta) const {
    unsigned const tiles = unsigned(tiles_m) * unsigned(tiles_n);
    unsigned const tile = cta % tiles;
    unsigned const per_group = unsigned(kGroup) * unsigned(tiles_n);
    unsigned const group = tile / per_group;
    unsigned const first = group * kGroup;
    unsigned const rows = unsigned(tiles_m) - first < kGroup ? unsigned(tiles_m) - first : kGroup;
    unsigned const within = tile - group * per_group;
    return {int(first + within % rows), int(within / rows), int(cta / tiles)};
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
