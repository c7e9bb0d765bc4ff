// Powers of two that make the columns of W alike, before its rows are split into fp16 halves.
//
// A row's halves hold what is within 2^-39 of its largest element. Where the columns of W differ by
// orders of magnitude, those of x may do so the other way round, as behind a layer that normalises,
// and then what a row of x loses meets the largest weights. x f and W / f have the same product.
#pragma once

#include <climits>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// Of a factor, which is a power of two and far from the ends of float's range.
CUTLASS_OPS_DEVICE int exponent_of_factor(float factor) {
  return int(__float_as_uint(factor) >> 23) - 127;
}

/// Exact for a factor.
CUTLASS_OPS_DEVICE float inverse_factor(float factor) {
  return __uint_as_float((254u << 23) - __float_as_uint(factor));
}

struct ColumnFactorsConfig {
  static constexpr int kThreads = 1024;
  static constexpr int kSamples = 16;   ///< rows of W that are looked at
  static constexpr int kDeadZone = 10;  ///< binades within which columns count as alike
  static constexpr int kMost = 40;      ///< binades of a factor
};

struct ColumnFactorsParams {
  float const* weight;  ///< unit column stride
  std::int64_t stride;  ///< elements between rows
  int rows;
  int columns;
  int pitch;
  float* factors;  ///< [pitch], of use only if columns are not alike; 1 beyond the last
  int* spread;     ///< whether they are not
};

/// Of the columns all of whose samples have an exponent.
struct ColumnStatistics {
  int count;
  int lowest, highest;  ///< sums of exponents over the samples
  std::int64_t sum;

  CUTLASS_OPS_DEVICE void include(ColumnStatistics const& other) {
    count += other.count;
    lowest = min(lowest, other.lowest);
    highest = max(highest, other.highest);
    sum += other.sum;
  }
};

/// The sum of the biased exponents of a column's samples; INT_MIN where one is zero, denormal,
/// infinite or NaN.
CUTLASS_OPS_DEVICE int sum_of_exponents(ColumnFactorsParams const& params, int column) {
  constexpr int kSamples = ColumnFactorsConfig::kSamples;
  int sum = 0;
  bool complete = true;
  CUTLASS_OPS_UNROLL_BY(4)
  for (int i = 0; i < kSamples; ++i) {
    // With fewer rows than samples some are looked at more than once.
    std::int64_t const row = std::int64_t{i} * params.rows / kSamples;
    unsigned const bits = __float_as_uint(params.weight[row * params.stride + column]);
    int const exponent = int(bits >> 23 & 0xff);
    complete &= exponent > 0 && exponent < 0xff;
    sum += exponent;
  }
  return complete ? sum : INT_MIN;
}

/// Over the CTA; every thread gets the result.
CUTLASS_OPS_DEVICE ColumnStatistics reduce_statistics(ColumnStatistics statistics) {
  __shared__ ColumnStatistics parts[ColumnFactorsConfig::kThreads];
  parts[threadIdx.x] = statistics;
  CUTLASS_OPS_UNROLL_BY(1)
  for (int stride = ColumnFactorsConfig::kThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < stride) {
      parts[threadIdx.x].include(parts[threadIdx.x + stride]);
    }
  }
  __syncthreads();
  return parts[0];
}

/// One CTA: 16 rows are little to read, and what follows does not wait for it with its own loads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) column_factors(
    __grid_constant__ ColumnFactorsParams const params) {
  wait_for_predecessor();
  release_successor();
  ColumnStatistics own{0, INT_MAX, INT_MIN, 0};
  int* const sums = reinterpret_cast<int*>(params.factors);  // each read by its own thread alone
  for (std::int64_t column = threadIdx.x; column < params.columns; column += Config::kThreads) {
    int const sum = sum_of_exponents(params, int(column));
    sums[column] = sum;
    if (sum != INT_MIN) {
      own.include({1, sum, sum, sum});
    }
  }
  ColumnStatistics const all = reduce_statistics(own);
  bool const spread = all.count > 0 &&
                      std::int64_t{all.highest} - all.lowest > Config::kDeadZone * Config::kSamples;
  if (threadIdx.x == 0) {
    *params.spread = spread;
  }
  if (!spread) {
    return;
  }
  float const mean = float(double(all.sum) / all.count);
  for (std::int64_t column = threadIdx.x; column < params.pitch; column += Config::kThreads) {
    int const sum = column < params.columns ? sums[column] : INT_MIN;
    float const binades = sum == INT_MIN ? 0.0f : rintf((float(sum) - mean) / Config::kSamples);
    int const most = Config::kMost;
    params.factors[column] = ldexpf(1.0f, max(-most, min(most, int(binades))));
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
