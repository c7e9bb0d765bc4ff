// A row split into fp16 halves with the factors of its columns (column_factors.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/kernel/column_exponents.h"
#include "cutlass_ops/kernel/split_target.h"

namespace cutlass_ops {
namespace kernel {

/// Four columns of a row, or of the mean of rows, whatever their alignment.
template <bool kFolds>
CUTLASS_OPS_DEVICE epilogue::Fragment<4> fragment_at(SplitRowsParams const& params, int row,
                                                     std::int64_t column) {
  float const* first =
      params.source + std::int64_t{row} * params.kernel_size * params.stride + column;
  int const left = int(params.columns - column);
  if constexpr (!kFolds) {
    return epilogue::load_columns<4>(first, left, params.vectorized);
  }
  double sums[4] = {};
  CUTLASS_OPS_UNROLL_BY(1)
  for (int i = 0; i < params.kernel_size; ++i, first += params.stride) {
    auto const z = epilogue::load_columns<4>(first, left, params.vectorized);
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < 4; ++j) {
      sums[j] += double(z[j]);
    }
  }
  epilogue::Fragment<4> mean;
  CUTLASS_OPS_UNROLL
  for (int j = 0; j < 4; ++j) {
    mean[j] = float(sums[j] / double(params.kernel_size));
  }
  return mean;
}

/// With the factors of the columns: rare, and so read twice, four columns at a time. Elements times
/// factors are nowhere formed before the scale, for they may lie outside of float's range.
template <class Config>
CUTLASS_OPS_DEVICE void split_balanced_row(SplitRowsParams const& params, int row) {
  int const begin = int(threadIdx.x) % Config::kThreads * 4;
  auto const factor_at = [&](std::int64_t column) {
    auto const factors = *reinterpret_cast<epilogue::Fragment<4> const*>(params.factors + column);
    return params.divides ? epilogue::map(factors, inverse_factor) : factors;
  };
  bool has_nan = false;
  float largest = -INFINITY;  // exponent
  CUTLASS_OPS_UNROLL_BY(1)
  for (std::int64_t column = begin; column < params.columns; column += Config::kStep) {
    auto const z = fragment_at<Config::kFolds>(params, row, column);
    auto const factors = factor_at(column);
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < 4; ++j) {
      float const magnitude = fabsf(z[j]);
      has_nan |= magnitude != magnitude;
      float const exponent = float(ilogbf(magnitude) + exponent_of_factor(factors[j]));
      largest = fmaxf(largest, magnitude > 0.0f ? exponent : -INFINITY);
      largest = magnitude < INFINITY ? largest : INFINITY;
    }
  }
  largest = reduce_threads<FloatMax, Config::kThreads>(largest);
  bool const finite = largest < INFINITY;
  bool const zero = largest == -INFINITY;
  auto const scale =
      finite && !zero ? gemm::Fp16Scale::of_exponent(int(largest)) : gemm::Fp16Scale::of(0.0f);
  SplitTarget const target{params, row};
  target.template set_scale<Config>(scale, finite, has_nan);
  CUTLASS_OPS_UNROLL_BY(1)
  for (std::int64_t column = begin; column < params.pitch; column += Config::kStep) {
    epilogue::Fragment<4> v{};
    if (finite && column < params.columns) {
      auto const z = fragment_at<Config::kFolds>(params, row, column);
      auto const factors = factor_at(column);
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        v[j] = scale.apply(z[j], factors[j]);
      }
    }
    store_halves(v, target.high() + column, target.low() + column);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
