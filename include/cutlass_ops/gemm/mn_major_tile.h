// How our own SIMT mainloop keeps an operand in shared memory: MN-major, [k][row].
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// Where an operand tile of kRows x kK lies in shared memory, in floats.
///
/// Rows are kept pairwise swapped: row r at index r ^ 1. A thread reads four of them with one
/// 128-bit load, into a register quad whose even members thus hold odd rows. The adapter's 128-bit
/// stores hold the accumulators in quads in their natural order, so that an accumulator and the
/// operand that its FFMA has to fetch lie in different register banks. In the natural order they
/// share one: 47.6 against 52.1 TFLOP/s at the headline size on an H200.
template <int kRows, int kK>
struct MnMajorTile {
  /// After every four k. A warp stores four rows times 32 k at a time; this spreads them over all
  /// banks, and keeps 128-bit loads aligned.
  static constexpr int kPad = 4;
  static constexpr int kElements = kRows * kK + kK / 4 * kPad;

  CUTLASS_OPS_HOST_DEVICE static constexpr int offset(int k, int row) {
    return k * kRows + k / 4 * kPad + row;
  }

  CUTLASS_OPS_HOST_DEVICE static constexpr int swapped(int row) { return row ^ 1; }
};

/// The same number, whose origin the compiler does not see: it would rather compute an address
/// anew in every tile of the mainloop than keep a register for it.
CUTLASS_OPS_DEVICE std::uint32_t opaque(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace gemm
}  // namespace cutlass_ops
