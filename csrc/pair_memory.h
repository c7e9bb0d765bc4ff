// How gemm::Fp16Pairs lie in float memory: for the plan and the queries, which size it, and the
// launchers, which lay them out.
#pragma once

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "kernel_table.h"

namespace cutlass_ops {

/// So many elements, up to the next line of L2. A row of a tile is one, where halves begin with
/// one; 16 bytes beyond, it takes two, and the GEMM at 1024 x 8192 x 8192 took 611 us for 559.
inline std::int64_t whole_lines(std::int64_t elements) {
  constexpr int kLine = 128 / sizeof(float);
  return ceil_div(elements, kLine) * kLine;
}

/// Halves, then scales, then, for a weight, the factors of its columns and whether there are any.
struct PairMemory {
  std::int64_t scales, factors, spread, elements;  ///< where they begin, and the end

  PairMemory(std::int64_t rows, int columns)
      : scales(rows * gemm::Fp16Pairs::pitch_of(columns)),
        factors(ceil_div(scales + 2 * rows, 4) * 4),
        spread(factors + gemm::Fp16Pairs::pitch_of(columns)),
        elements(whole_lines(spread + 1)) {}
};

/// Words in front of the halves: a flag for every column tile.
inline std::int64_t column_flag_words(int n, int tile_n) {
  return whole_lines(ceil_div(n, tile_n));
}

/// What a kernel that takes halves has of x: its halves, or, where it splits x itself, the scales
/// of its rows in each share of k.
inline std::int64_t x_elements(int kernel, int splits, int rows, int columns) {
  return kernel == kFp16x3 ? PairMemory(rows, columns).elements
                           : whole_lines(std::int64_t{2} * splits * rows);
}

inline gemm::Fp16Scale* scales_in(float* memory, int rows, int columns) {
  return reinterpret_cast<gemm::Fp16Scale*>(memory + PairMemory(rows, columns).scales);
}

/// The pairs of a [rows, columns] matrix in memory that is 16-byte aligned.
inline gemm::Fp16Pairs pairs_in(float const* memory, int rows, int columns) {
  PairMemory const parts(rows, columns);
  return {reinterpret_cast<__half const*>(memory),
          reinterpret_cast<gemm::Fp16Scale const*>(memory + parts.scales),
          rows,
          columns,
          gemm::Fp16Pairs::pitch_of(columns),
          memory + parts.factors,
          reinterpret_cast<int const*>(memory + parts.spread)};
}

}  // namespace cutlass_ops
