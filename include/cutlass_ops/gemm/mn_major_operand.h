// One MN-major operand, [k][row] in memory, on its way into shared memory, where it lies the same
// way: what backward multiplies.
#pragma once

#include <cstdint>

#include "cutlass/arch/memory.h"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/mn_major_tile.h"

namespace cutlass_ops {
namespace gemm {

/// The twin of KMajorOperand: a slot is a vector of four rows at one k, a warp has all rows of it.
/// Rows must be whole vectors, 16-byte aligned.
template <int kRows, int kK, int kThreads>
struct MnMajorOperand {
  using Tile = MnMajorTile<kRows, kK>;
  using Vector = epilogue::Fragment<4>;
  static constexpr int kLanes = kRows / 4;  ///< that share a k
  static constexpr int kSlotK = kThreads / kLanes;
  static constexpr int kSlots = kK / kSlotK;

  static_assert(kLanes == 32, "a warp stores one k, without bank conflicts");
  static_assert(kSlots * kSlotK == kK, "the slots cover the tile");
  static_assert(kSlotK % 4 == 0, "slots are the same number of pads apart");

  /// The way of a thread over the matrix, in bytes. From the last slot of a tile to the next tile
  /// it is as far as from slot to slot.
  struct Steps {
    std::int64_t to_next_k;

    static Steps make(std::int64_t stride) { return {std::int64_t(sizeof(float)) * stride}; }
  };

  char const* source;         ///< of the next load
  std::uint32_t destination;  ///< in stage 0, bytes

  CUTLASS_OPS_DEVICE static int thread_k(int thread) { return thread / kLanes; }

  CUTLASS_OPS_DEVICE MnMajorOperand(float const* matrix, std::int64_t stride, int first_row,
                                    int first_k, std::uint32_t shared, int thread) {
    int const row = thread % kLanes * 4;
    source = reinterpret_cast<char const*>(matrix + (first_k + thread_k(thread)) * stride +
                                           first_row + row);
    destination =
        opaque(shared + std::uint32_t(sizeof(float)) * Tile::offset(thread_k(thread), row));
  }

  CUTLASS_OPS_DEVICE Vector load(int, Steps const& steps) {
    Vector vector;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(vector[0]), "=f"(vector[1]), "=f"(vector[2]), "=f"(vector[3])
                 : "l"(source));
    source += kSlotK * steps.to_next_k;
    return vector;
  }

  CUTLASS_OPS_DEVICE void retreat(int count, Steps const& steps) {
    source -= count * steps.to_next_k;
  }

  CUTLASS_OPS_DEVICE void store(int slot, std::uint32_t stage, Vector const& vector) const {
    float rows[4];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows[i] = vector[Tile::swapped(i)];
    }
    cutlass::arch::shared_store<16>(address(slot, stage), rows);
  }

  /// Zeros in place of those of this thread's elements whose k lies outside of [begin, end).
  CUTLASS_OPS_DEVICE void clear_outside(int begin, int end, int thread) const {
    float const zeros[4] = {};
    CUTLASS_OPS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      int const k = thread_k(thread) + slot * kSlotK;
      if (k < begin || k >= end) {
        cutlass::arch::shared_store<16>(address(slot, 0), zeros);
      }
    }
  }

 private:
  CUTLASS_OPS_DEVICE std::uint32_t address(int slot, std::uint32_t stage) const {
    return destination + stage + std::uint32_t(sizeof(float)) * Tile::offset(slot * kSlotK, 0);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
