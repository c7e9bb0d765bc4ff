// Operands of the "fp16x3" kernels: each row of a float matrix under a power of two, as the sum of
// two fp16 matrices.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// row = (high + low) * first * second, for the two factors of its scale: their product alone may
/// lie outside of float's range.
struct Fp16Pairs {
  static constexpr int kPitchMultiple = 8;  ///< TMA wants strides of 16 bytes

  __half const* halves;  ///< [2, rows, pitch]: high, low; 16-byte aligned
  float2 const* scales;  ///< [rows]
  int rows;
  int columns;
  int pitch;

  static constexpr int pitch_of(int columns) {
    return int(ceil_div(columns, kPitchMultiple)) * kPitchMultiple;
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
