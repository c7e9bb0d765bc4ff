// Powers of two that make the columns of W alike, before its rows are split into fp16 halves.
//
// A row's halves hold what is within 2^-39 of its largest element. Where the columns of W differ by
// orders of magnitude, those of x may do so the other way round, as behind a layer that normalises,
// and then what a row of x loses meets the largest weights. x f and W / f have the same product.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/kernel/cluster.h"
#include "cutlass_ops/kernel/reduce_threads.h"

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
  static constexpr int kCluster = 8;    ///< CTAs; one alone took 31 us for 8192 columns
  static constexpr int kSamples = 8;    ///< rows of W that are looked at, all at once
  static constexpr int kDeadZone = 10;  ///< binades within which columns count as alike
  static constexpr int kMost = 40;      ///< binades of a factor
  static constexpr int kMostLoss = 16;  ///< binades that a row of W may lose (RowExponents::lose)
};

struct ColumnFactorsParams {
  float const* weight;
  std::int64_t stride;  ///< elements between rows
  std::int64_t step;    ///< elements between columns
  int rows;
  int columns;
  int pitch;
  float* factors;  ///< [pitch], of use only if columns are not alike; 1 beyond the last
  int* spread;     ///< whether they are not

  CUTLASS_OPS_DEVICE float element(std::int64_t row, std::int64_t column) const {
    return weight[row * stride + column * step];
  }
};

/// The sum of the biased exponents of a column's samples; INT_MIN where one is zero, denormal,
/// infinite or NaN.
CUTLASS_OPS_DEVICE int sum_of_exponents(ColumnFactorsParams const& params, int column) {
  constexpr int kSamples = ColumnFactorsConfig::kSamples;
  int sum = 0;
  bool complete = true;
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kSamples; ++i) {
    // With fewer rows than samples some are looked at more than once.
    std::int64_t const row = std::int64_t{i} * params.rows / kSamples;
    unsigned const bits = __float_as_uint(params.element(row, column));
    int const exponent = int(bits >> 23 & 0xff);
    complete &= exponent > 0 && exponent < 0xff;
    sum += exponent;
  }
  return complete ? sum : INT_MIN;
}

/// Of the columns all of whose samples have an exponent, over the sums of these.
struct ColumnStatistics {
  float lowest = INFINITY;
  float highest = -INFINITY;
  float total = 0.0f;
  float columns = 0.0f;

  CUTLASS_OPS_DEVICE void include(int sum) {
    lowest = fminf(lowest, float(sum));
    highest = fmaxf(highest, float(sum));
    total += float(sum);
    columns += 1.0f;
  }
};

CUTLASS_OPS_DEVICE int factor_exponent(float sum, float mean) {
  constexpr int kMost = ColumnFactorsConfig::kMost;
  int const binades = int(rintf((sum - mean) / ColumnFactorsConfig::kSamples));
  return max(-kMost, min(kMost, binades));
}

/// Of the elements of a row of W that have one.
struct RowExponents {
  float whole = -INFINITY;    ///< the largest
  float divided = -INFINITY;  ///< once every element is divided by its column's factor

  CUTLASS_OPS_DEVICE void include(float value, float factor) {
    int const exponent = int(__float_as_uint(value) >> 23 & 0xff);
    if (exponent > 0) {
      whole = fmaxf(whole, float(exponent));
      divided = fmaxf(divided, float(exponent - exponent_of_factor(factor)));
    }
  }

  /// Whether this row is not what the samples promised. Under factors the halves of a row of x are
  /// as fine as 2^-39 of its largest element times the largest factor, at worst; they meet elements
  /// up to 2^a of a row of W that has been divided, whose result is not small beside 2^b, its
  /// largest element before.
  CUTLASS_OPS_DEVICE bool lose(int largest_factor) const {
    bool const finite = whole > 0.0f && whole < 255.0f;
    return finite &&
           float(largest_factor) + divided - whole > float(ColumnFactorsConfig::kMostLoss);
  }
};

/// Whether one of this warp's rows does: rows in memory, which the lanes share.
CUTLASS_OPS_DEVICE bool some_row_loses(ColumnFactorsParams const& params, int warp, int warps,
                                       int largest_factor) {
  bool loses = false;
  CUTLASS_OPS_UNROLL_BY(1)
  for (std::int64_t row = warp; row < params.rows; row += warps) {
    RowExponents own;
    CUTLASS_OPS_UNROLL_BY(4)
    for (std::int64_t column = threadIdx.x % 32; column < params.columns; column += 32) {
      own.include(params.element(row, column), params.factors[column]);
    }
    RowExponents const all{epilogue::warp_reduce<FloatMax>(own.whole),
                           epilogue::warp_reduce<FloatMax>(own.divided)};
    loses |= all.lose(largest_factor);
  }
  return loses;
}

/// The same of a transpose, whose neighbours in memory are of neighbouring rows: a lane has a row.
CUTLASS_OPS_DEVICE bool some_row_of_transpose_loses(ColumnFactorsParams const& params, int warp,
                                                    int warps, int largest_factor) {
  bool loses = false;
  CUTLASS_OPS_UNROLL_BY(1)
  for (std::int64_t row = 32 * std::int64_t{warp} + threadIdx.x % 32; row < params.rows;
       row += 32 * std::int64_t{warps}) {
    RowExponents own;
    CUTLASS_OPS_UNROLL_BY(16)
    for (int column = 0; column < params.columns; ++column) {
      own.include(params.element(row, column), params.factors[column]);
    }
    loses |= own.lose(largest_factor);
  }
  return loses;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Monoids of one sort, with shared memory of their own.
struct LowestMax : FloatMax {};
struct ColumnCount : epilogue::SumMonoid {};

/// Over so many threads. Sums of floats, but in an order that does not change.
template <int kThreads>
CUTLASS_OPS_DEVICE ColumnStatistics reduce_statistics(ColumnStatistics const& own) {
  return {-reduce_threads<LowestMax, kThreads>(-own.lowest),
          reduce_threads<FloatMax, kThreads>(own.highest),
          reduce_threads<epilogue::SumMonoid, kThreads>(own.total),
          reduce_threads<ColumnCount, kThreads>(own.columns)};
}

/// Over the cluster; every thread gets the result. The first cluster barrier, behind which every
/// CTA has started, has been arrived at.
template <class Config>
CUTLASS_OPS_DEVICE ColumnStatistics combine_statistics(ColumnStatistics const& own) {
  __shared__ float2 ranges[Config::kCluster];
  __shared__ float2 totals[Config::kCluster];
  ColumnStatistics const part = reduce_statistics<Config::kThreads>(own);
  int const rank = cluster_rank();
  cluster_wait();
  if (threadIdx.x < Config::kCluster) {
    store_remote(&ranges[rank], int(threadIdx.x), {part.lowest, part.highest});
    store_remote(&totals[rank], int(threadIdx.x), {part.total, part.columns});
  }
  cluster_arrive();
  cluster_wait();
  float2 const range = ranges[threadIdx.x % Config::kCluster];  // a lane each
  float2 const total = totals[threadIdx.x % Config::kCluster];
  return reduce_statistics<Config::kCluster>({range.x, range.y, total.x, total.y});
}
#endif

/// One cluster: 8 rows are little to read, and what follows does not wait for it with its own
/// loads. All rows are read only where columns are not alike. Built for an older GPU than those
/// with clusters it is empty, as are the kernels that want halves.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) column_factors(
    __grid_constant__ ColumnFactorsParams const params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cluster_arrive_relaxed();
  wait_for_predecessor();
  release_successor();
  constexpr int kStep = Config::kCluster * Config::kThreads;
  std::int64_t const first = cluster_rank() * Config::kThreads + int(threadIdx.x);
  ColumnStatistics own;
  int* const sums = reinterpret_cast<int*>(params.factors);  // each read by its own thread alone
  for (std::int64_t column = first; column < params.columns; column += kStep) {
    int const sum = sum_of_exponents(params, int(column));
    sums[column] = sum;
    if (sum != INT_MIN) {
      own.include(sum);
    }
  }
  ColumnStatistics const all = combine_statistics<Config>(own);
  bool const spread = all.highest - all.lowest > float(Config::kDeadZone * Config::kSamples);
  if (first == 0) {
    *params.spread = spread;
  }
  if (!spread) {
    return;
  }
  float const mean = all.total / all.columns;
  for (std::int64_t column = first; column < params.pitch; column += kStep) {
    int const sum = column < params.columns ? sums[column] : INT_MIN;
    params.factors[column] = ldexpf(1.0f, sum == INT_MIN ? 0 : factor_exponent(float(sum), mean));
  }
  cluster_arrive();
  cluster_wait();  // for all factors
  int const largest = max(0, factor_exponent(all.highest, mean));
  int const warp = int(first) / 32;
  int const warps = kStep / 32;
  bool const loses = params.step == 1 ? some_row_loses(params, warp, warps, largest)
                                      : some_row_of_transpose_loses(params, warp, warps, largest);
  if (__syncthreads_or(loses) && threadIdx.x == 0) {
    *params.spread = 0;
  }
#endif
}

}  // namespace kernel
}  // namespace cutlass_ops
