// What is split into fp16 halves, and where they go.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/fp16_scale.h"
#include "cutlass_ops/kernel/reduce_threads.h"

namespace cutlass_ops {
namespace kernel {

/// A second maximum over the same threads has shared memory of its own.
struct FlagMax : FloatMax {};

/// One matrix to be split.
struct SplitRowsParams {
  float const* source;  ///< unit column stride
  std::int64_t stride;  ///< elements between rows of the source
  int rows;             ///< of the result
  int columns;
  int pitch;                ///< of the result
  int kernel_size;          ///< rows of the source to one of the result
  bool vectorized;          ///< four columns, from a multiple of four on, are 16-byte aligned
  __half* halves;           ///< [2, rows, pitch]
  gemm::Fp16Scale* scales;  ///< [rows], that take back
  float const* bias;        ///< [>= rows * kernel_size], to be folded too; or nullptr for none
  float* bias_out;          ///< [rows]
  float const* factors;     ///< of columns (column_factors.h), 16-byte aligned
  int const* spread;        ///< whether there are any
  bool divides;             ///< W's columns are divided by them, those of x multiplied
};

/// Four scaled elements, each as the sum of two halves.
CUTLASS_OPS_DEVICE void store_halves(epilogue::Fragment<4> const& v, __half* high, __half* low) {
  __half2 highs[2];
  __half2 lows[2];
  CUTLASS_OPS_UNROLL
  for (int j = 0; j < 2; ++j) {
    highs[j] = __float22half2_rn({v[2 * j], v[2 * j + 1]});
    float2 const rounded = __half22float2(highs[j]);
    lows[j] = __float22half2_rn({v[2 * j] - rounded.x, v[2 * j + 1] - rounded.y});
  }
  *reinterpret_cast<uint2*>(high) = *reinterpret_cast<uint2*>(highs);
  *reinterpret_cast<uint2*>(low) = *reinterpret_cast<uint2*>(lows);
}

/// A row's place among the halves, and its scale.
struct SplitTarget {
  SplitRowsParams const& params;
  int row;

  CUTLASS_OPS_DEVICE __half* high() const {
    return params.halves + std::int64_t{row} * params.pitch;
  }
  CUTLASS_OPS_DEVICE __half* low() const {
    return high() + std::int64_t{params.rows} * params.pitch;
  }

  /// By the threads of the row: the scale, or what a row has that is not finite.
  template <class Config>
  CUTLASS_OPS_DEVICE void set_scale(gemm::Fp16Scale scale, bool finite, bool has_nan) const {
    gemm::Fp16Scale back = scale.inverse();
    if (!finite) {
      back = gemm::Fp16Scale::none(reduce_threads<FlagMax, Config::kThreads>(has_nan) > 0.0f);
    }
    if (int(threadIdx.x) % Config::kThreads == 0) {
      params.scales[row] = back;
    }
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
