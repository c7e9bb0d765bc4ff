// Operands of the "fp16x3" kernels: each row of a float matrix under a power of two, as the sum of
// two fp16 matrices.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/gemm/fp16_scale.h"

namespace cutlass_ops {
namespace gemm {

/// A row is scales[row].apply(high + low). That of a row with an infinity or NaN is NaN, and so is
/// what comes of it, until it is repaired.
struct Fp16Pairs {
  static constexpr int kPitchMultiple = 8;  ///< TMA wants strides of 16 bytes
  static constexpr int kLine = 64;          ///< of L2, which a row of a tile of k then takes one of

  __half const* halves;     ///< [2, rows, pitch]: high, low; 16-byte aligned
  Fp16Scale const* scales;  ///< [rows], 16-byte aligned, with room for an even number
  int rows;
  int columns;
  int pitch;
  float const* factors;  ///< of a weight's columns: those of x are multiplied by them
  int const* spread;     ///< whether any is not 1; else they are not there

  CUTLASS_OPS_HOST_DEVICE bool needs_repair(int row) const { return scales[row].needs_repair(); }

  static constexpr int pitch_of(int columns) {
    int const multiple = columns < 8 * kLine ? kPitchMultiple : kLine;  // at most 1/8 of padding
    return int(ceil_div(columns, multiple)) * multiple;
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
