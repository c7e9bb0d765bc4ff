// One K-major operand on its way into shared memory, where it lies MN-major: [k][row].
#pragma once

#include <cstdint>

#include "cutlass/arch/memory.h"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/mn_major_tile.h"

namespace cutlass_ops {
namespace gemm {

/// A thread's share of the loads and stores of one operand: kSlots vectors of four k a tile, the
/// rows of the CTA's threads times kSlots apart. Every load is within the matrix: the caller moves
/// tiles that would reach over an edge back inside. `kVectorized` wants 16-byte aligned vectors.
template <int kRows, int kK, int kThreads, bool kVectorized>
struct KMajorOperand {
  using Tile = MnMajorTile<kRows, kK>;
  using Vector = epilogue::Fragment<4>;
  static constexpr int kLanes = kK / 4;  ///< that share a row
  static constexpr int kSlotRows = kThreads / kLanes;
  static constexpr int kSlots = kRows / kSlotRows;

  static_assert(kK == 32, "a warp's stores were laid out for 8 lanes along k");
  static_assert(kSlots * kSlotRows == kRows, "the slots cover the tile");

  /// The way of a thread over the matrix, in bytes: kernel parameters, for registers are scarce.
  struct Steps {
    std::int64_t to_next_slot;
    std::int64_t to_next_tile;  ///< from the last slot to slot 0 of the tile kK further along k

    static Steps make(std::int64_t stride) {
      std::int64_t const slot = sizeof(float) * kSlotRows * stride;
      return {slot, std::int64_t(sizeof(float)) * kK - (kSlots - 1) * slot};
    }
  };

  char const* source;         ///< of the next load
  std::uint32_t destination;  ///< in stage 0, bytes

  /// Where in a tile the vectors of a thread begin along k.
  CUTLASS_OPS_DEVICE static int thread_k(int thread) { return thread % kLanes * 4; }

  CUTLASS_OPS_DEVICE KMajorOperand(float const* matrix, std::int64_t stride, int first_row,
                                   int first_k, std::uint32_t shared, int thread) {
    int const row = thread / kLanes;
    source = reinterpret_cast<char const*>(matrix + (first_row + row) * stride + first_k +
                                           thread_k(thread));
    int const offset = Tile::offset(thread_k(thread), Tile::swapped(row));
    destination = opaque(shared + std::uint32_t(sizeof(float)) * offset);
  }

  /// The vector of `slot`; then on to the next slot, or to the next tile.
  CUTLASS_OPS_DEVICE Vector load(int slot, Steps const& steps) {
    Vector vector;
    if constexpr (kVectorized) {
      // Not kept in L1: a CTA reads every element once.
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(vector[0]), "=f"(vector[1]), "=f"(vector[2]), "=f"(vector[3])
                   : "l"(source));
    } else {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < 4; ++i) {
        asm volatile("ld.global.nc.f32 %0, [%1];"
                     : "=f"(vector[i])
                     : "l"(source + sizeof(float) * i));
      }
    }
    source += slot < kSlots - 1 ? steps.to_next_slot : steps.to_next_tile;
    return vector;
  }

  /// Back along k, by so many elements.
  CUTLASS_OPS_DEVICE void retreat(int count, Steps const&) { source -= sizeof(float) * count; }

  CUTLASS_OPS_DEVICE void store(int slot, std::uint32_t stage, Vector const& vector) const {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < 4; ++i) {
      cutlass::arch::shared_store<4>(address(slot, stage, i), &vector.values[i]);
    }
  }

  /// Zeros in place of those of this thread's elements whose k lies outside of [begin, end).
  CUTLASS_OPS_DEVICE void clear_outside(int begin, int end, int thread) const {
    float const zero = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < 4; ++i) {
      int const k = thread_k(thread) + i;
      CUTLASS_OPS_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) {
        if (k < begin || k >= end) {
          cutlass::arch::shared_store<4>(address(slot, 0, i), &zero);
        }
      }
    }
  }

 private:
  CUTLASS_OPS_DEVICE std::uint32_t address(int slot, std::uint32_t stage, int i) const {
    return destination + stage + std::uint32_t(sizeof(float)) * Tile::offset(i, slot * kSlotRows);
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
