// The operand of the tensor cores that comes from registers, read as floats from shared memory and
// split there.
#pragma once

#include <cuda_fp16.h>

#include "cute/tensor.hpp"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/row_exponent.h"

namespace cutlass_ops {
namespace gemm {

/// The greater of the magnitudes; NaN if either is, which fmaxf would drop.
CUTLASS_OPS_DEVICE float max_magnitude(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(fabsf(a)), "f"(fabsf(b)));
  return largest;
}

/// A lane of the tensor cores' operand has two columns of every eight, of two rows, which are eight
/// apart there. In the tile they are neighbours, and rows of four lanes are two apart: the lanes
/// that read at a time, half of a warp, then meet each bank of the swizzled rows once, and else
/// twice. The rows of the result lie likewise (Tile::kLaneRows, kHalfRows).
///
/// TileX: OperandTile of floats, of kK columns.
template <class TileX, int kK>
struct FloatFragment {
  static constexpr int kBox = 32;           ///< columns in a row of 128 bytes
  static constexpr int kGroups = kBox / 8;  ///< of eight columns
  static constexpr int kPairs = kK / 4;

  /// Of a tile: where this thread's columns of the first box begin.
  struct Places {
    int offsets[kGroups][2];

    CUTLASS_OPS_DEVICE static int row(int thread, int half) {
      return thread / 32 * 16 + thread % 32 / 4 * 2 + half;
    }
    CUTLASS_OPS_DEVICE static int column(int thread, int group) {
      return group * 8 + thread % 4 * 2;
    }
    CUTLASS_OPS_DEVICE static int offset(int thread, int group, int half) {
      auto const layout = cute::as_position_independent_swizzle_layout(typename TileX::Layout{});
      return int(layout(row(thread, half), column(thread, group), 0, 0));
    }

    CUTLASS_OPS_DEVICE static Places of(int thread) {
      Places places;
      CUTLASS_OPS_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        CUTLASS_OPS_UNROLL
        for (int half = 0; half < 2; ++half) {
          places.offsets[group][half] = offset(thread, group, half);
        }
      }
      return places;
    }
  };

  float2 pairs[kPairs];  ///< of row i % 2, columns 8 (i / 2) and on, in the order of the registers

  CUTLASS_OPS_DEVICE void load(float const* tile, Places const& places) {
    constexpr int kBoxElements = TileX::kStageElements / (kK / kBox);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      int const group = i / 2;
      float const* const box = tile + group / kGroups * kBoxElements;
      pairs[i] = *reinterpret_cast<float2 const*>(box + places.offsets[group % kGroups][i % 2]);
    }
  }

  /// The exponent of the row's largest magnitude in the tile.
  CUTLASS_OPS_DEVICE int exponent(int half) const {
    float largest = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int i = half; i < kPairs; i += 2) {
      largest = max_magnitude(largest, max_magnitude(pairs[i].x, pairs[i].y));
    }
    return RowExponent::of(reduce_lanes_of_row(largest, max_magnitude));
  }

  /// high + low = the elements times the scales of their rows.
  template <class Halves>
  CUTLASS_OPS_DEVICE void split(float const (&scales)[2], Halves& high, Halves& low) const {
    auto highs = cute::recast<__half2>(high);
    auto lows = cute::recast<__half2>(low);
    static_assert(decltype(cute::size(highs))::value == kPairs, "the operand of a tile");
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      float const scale = scales[i % 2];
      float2 const v{pairs[i].x * scale, pairs[i].y * scale};
      __half2 const rounded = __float22half2_rn(v);
      float2 const part = __half22float2(rounded);
      highs(i) = rounded;
      lows(i) = __float22half2_rn({v.x - part.x, v.y - part.y});
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
