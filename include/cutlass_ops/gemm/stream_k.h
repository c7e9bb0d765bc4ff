// Stream-K: the cut of a GEMM into as many equal shares as CTAs fit on the GPU. Osama et al.,
// "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the
// GPU", arXiv:2301.03598; the two-part form with whole tiles last.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// A share of one tile: blocks of k in [begin, end) of those that the tile has.
struct StreamPiece {
  int tile;
  int begin, end;
};

/// Of `tiles` tiles, tiles % ctas are shared out by blocks of k, every CTA taking as many; the
/// others are whole, one for each CTA at a time. Blocks are numbered tile after tile.
///
/// A tile is finished by the CTA that has its last block. It waits for the CTAs before it that have
/// the others, and for those alone: where CTAs are numbered in the order of their start, none waits
/// for one that may never start.
struct StreamK {
  int tiles;
  int blocks;  ///< of k in a tile
  int ctas;

  CUTLASS_OPS_HOST_DEVICE int streamed_tiles() const { return tiles % ctas; }
  CUTLASS_OPS_HOST_DEVICE int whole_tiles() const { return tiles / ctas; }  ///< of a CTA

  CUTLASS_OPS_HOST_DEVICE std::int64_t streamed_blocks() const {
    return std::int64_t{streamed_tiles()} * blocks;
  }

  /// CTAs that share them: none goes without, or another would wait for it in vain.
  CUTLASS_OPS_HOST_DEVICE int sharers() const {
    return streamed_blocks() < ctas ? int(streamed_blocks()) : ctas;
  }

  /// The first block of a CTA.
  CUTLASS_OPS_HOST_DEVICE std::int64_t first_block(int cta) const {
    return cta < sharers() ? streamed_blocks() * cta / sharers() : streamed_blocks();
  }

  /// The CTA that has a block: the last one whose first block is not beyond it.
  CUTLASS_OPS_HOST_DEVICE int owner(std::int64_t block) const {
    return int(((block + 1) * sharers() - 1) / streamed_blocks());
  }

  /// The CTA that has the first block of a streamed tile.
  CUTLASS_OPS_HOST_DEVICE int first_owner(int tile) const {
    return owner(std::int64_t{tile} * blocks);
  }

  /// The piece that a CTA works on after `done` others; false where there is none left.
  ///
  /// Streamed pieces come from the last to the first: what another CTA will wait for is done before
  /// this one waits. Whole tiles come after that, so that the waiting hides behind them.
  CUTLASS_OPS_HOST_DEVICE bool piece(int cta, int done, StreamPiece& piece) const {
    std::int64_t const begin = first_block(cta);
    std::int64_t const end = first_block(cta + 1);
    int const first_tile = int(begin / blocks);
    int const streamed = begin < end ? int((end - 1) / blocks) - first_tile + 1 : 0;
    if (done - streamed >= whole_tiles()) {
      return false;
    }
    if (done >= streamed) {
      piece = {streamed_tiles() + (done - streamed) * ctas + cta, 0, blocks};
      return true;
    }
    int const tile = first_tile + streamed - 1 - done;
    std::int64_t const origin = std::int64_t{tile} * blocks;
    piece = {tile, begin > origin ? int(begin - origin) : 0,
             end < origin + blocks ? int(end - origin) : blocks};
    return true;
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
