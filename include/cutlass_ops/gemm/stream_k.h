// Stream-K: the cut of a GEMM into work that keeps every CTA busy to the end. After Osama et al.,
// "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the
// GPU", arXiv:2301.03598; here with shares that begin at the same k, for CTAs that read the same
// rows at the same time find them in L2.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// Blocks of k in [begin, end) of one tile.
struct StreamPiece {
  static constexpr int kCompletes = -1;

  int tile;
  int begin, end;
  int slot;  ///< where it is published, or kCompletes: it adds up the others of its tile
};

/// Of `tiles` tiles, as many as fill waves of CTAs stay whole. Each of the `rest` is split into
/// `shares`, which begin at the same k in all of them, and a `tail` of blocks at its end: tails go
/// to `helpers`, the CTAs that are left, one tail after the other.
///
/// Items of work are numbered: whole tiles, helpers, shares in the order of k. CTAs take them in
/// that order, so that what an item waits for has been taken before it, whatever else the GPU runs.
struct StreamK {
  int tiles;
  int blocks;  ///< of k in a tile
  int rest, shares, tail, helpers;

  /// A piece of a tail takes about as long as so many more blocks, of 2.5 us each: its first loads,
  /// 64 KB to write, the next piece to find.
  static constexpr int kPieceBlocks = 2;

  /// `ctas` is how many run at the same time.
  static StreamK make(int tiles, int blocks, int ctas) {
    StreamK cut{tiles, blocks, tiles % ctas, 0, 0, 0};
    if (cut.rest == 0) {
      return cut;
    }
    int const wanted = ctas / cut.rest;
    cut.shares = wanted < blocks ? wanted : blocks;
    cut.helpers = ctas - cut.rest * wanted;
    // All end together where share + piece = rest / helpers * (tail + piece); rounded up.
    std::int64_t const even =
        std::int64_t{cut.rest} * (blocks + kPieceBlocks) - cut.helpers * kPieceBlocks;
    std::int64_t const share = (even + ctas - 1) / ctas;
    std::int64_t const tail = blocks - cut.shares * share;
    cut.tail = cut.helpers > 0 && tail > 0 ? int(tail) : 0;
    cut.helpers = cut.tail > 0 ? cut.helpers : 0;
    return cut;
  }

  CUTLASS_OPS_HOST_DEVICE int whole() const { return tiles - rest; }
  CUTLASS_OPS_HOST_DEVICE int items() const { return whole() + helpers + rest * shares; }

  /// The piece of an item after `done` others; false where there is none left.
  CUTLASS_OPS_HOST_DEVICE bool piece(int item, int done, StreamPiece& piece) const {
    if (item < whole()) {
      piece = {item, 0, blocks, StreamPiece::kCompletes};
      return done == 0;
    }
    if (item < whole() + helpers) {
      return tail_piece(item - whole(), done, piece);
    }
    int const index = item - whole() - helpers;
    int const row = index % rest;
    int const share = index / rest;
    bool const last = share == shares - 1;
    piece = {whole() + row, share_begin(share), share_begin(share + 1),
             last ? StreamPiece::kCompletes : row * (shares - 1) + share};
    return done == 0;
  }

  /// Pieces of a tile that are published.
  CUTLASS_OPS_HOST_DEVICE int published(int tile) const {
    if (tile < whole()) {
      return 0;
    }
    int const row = tile - whole();
    return shares - 1 +
           (tail > 0 ? helper((row + 1) * std::int64_t{tail} - 1) - first(row) + 1 : 0);
  }

  /// Where the one of them with this index is.
  CUTLASS_OPS_HOST_DEVICE int slot(int tile, int index) const {
    int const row = tile - whole();
    return index < shares - 1 ? row * (shares - 1) + index
                              : tail_slot(row, first(row) + index - (shares - 1));
  }

 private:
  CUTLASS_OPS_HOST_DEVICE int share_begin(int share) const {
    return int(std::int64_t{blocks - tail} * share / shares);
  }

  /// The first block of a helper, of those of all tails one after the other.
  CUTLASS_OPS_HOST_DEVICE std::int64_t helper_begin(int helper) const {
    return std::int64_t{rest} * tail * helper / helpers;
  }

  /// The helper that has a block: the last one whose first block is not beyond it.
  CUTLASS_OPS_HOST_DEVICE int helper(std::int64_t block) const {
    return int(((block + 1) * helpers - 1) / (std::int64_t{rest} * tail));
  }

  /// The helper that has the first block of a tail.
  CUTLASS_OPS_HOST_DEVICE int first(int row) const { return helper(std::int64_t{row} * tail); }

  /// Each tail and each helper begins a piece.
  CUTLASS_OPS_HOST_DEVICE int tail_slot(int row, int helper) const {
    return rest * (shares - 1) + row + helper;
  }

  CUTLASS_OPS_HOST_DEVICE bool tail_piece(int helper, int done, StreamPiece& piece) const {
    std::int64_t const begin = helper_begin(helper);
    std::int64_t const end = helper_begin(helper + 1);
    if (begin == end) {
      return false;
    }
    int const row = int(begin / tail) + done;
    std::int64_t const origin = std::int64_t{row} * tail;
    if (origin >= end) {
      return false;
    }
    int const first_k = blocks - tail;
    piece = {whole() + row, first_k + (begin > origin ? int(begin - origin) : 0),
             first_k + (end < origin + tail ? int(end - origin) : tail), tail_slot(row, helper)};
    return true;
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
