// Powers of two that make the columns of W alike, before its rows are split into fp16 halves.
//
// A row's halves hold what is within 2^-39 of its largest element. Where the columns of W differ by
// orders of magnitude, those of x may do so the other way round, as behind a layer that normalises,
// and then what a row of x loses meets the largest weights. x f and W / f have the same product.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/kernel/cluster.h"
#include "cutlass_ops/kernel/column_exponents.h"
#include "cutlass_ops/kernel/reduce_threads.h"

namespace cutlass_ops {
namespace kernel {

constexpr int kRowBatch = 8;

/// So many elements of a row of W, `step` columns apart, whose loads are all in flight at once.
CUTLASS_OPS_DEVICE void include_columns(ColumnFactorsParams const& params, std::int64_t row,
                                        std::int64_t first, int step, RowNorms& norms) {
  float values[kRowBatch], factors[kRowBatch];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kRowBatch; ++i) {
    std::int64_t const column = first + i * step;
    bool const exists = column < params.columns;
    values[i] = exists ? params.element(row, column) : 0.0f;
    factors[i] = exists ? params.factors[column] : 1.0f;
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kRowBatch; ++i) {
    norms.include(values[i], factors[i]);
  }
}

/// Whether one of this warp's rows loses (RowNorms): rows in memory, which the lanes share.
CUTLASS_OPS_DEVICE bool some_row_loses(ColumnFactorsParams const& params, int warp, int warps,
                                       int largest_factor) {
  bool loses = false;
  CUTLASS_OPS_UNROLL_BY(1)
  for (std::int64_t row = warp; row < params.rows; row += warps) {
    RowNorms own;
    CUTLASS_OPS_UNROLL_BY(1)
    for (std::int64_t first = threadIdx.x % 32; first < params.columns; first += 32 * kRowBatch) {
      include_columns(params, row, first, 32, own);
    }
    RowNorms const all{epilogue::warp_reduce<epilogue::SumMonoid>(own.whole),
                       epilogue::warp_reduce<epilogue::SumMonoid>(own.divided)};
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
    RowNorms own;
    CUTLASS_OPS_UNROLL_BY(1)
    for (std::int64_t first = 0; first < params.columns; first += kRowBatch) {
      include_columns(params, row, first, 1, own);
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

/// Whether it is so of any thread of the cluster, all of which have come here.
template <class Config>
CUTLASS_OPS_DEVICE bool any_in_cluster(bool own) {
  __shared__ float2 of_ctas[Config::kCluster];
  float const any = __syncthreads_or(own) != 0 ? 1.0f : 0.0f;
  if (threadIdx.x < Config::kCluster) {
    store_remote(&of_ctas[cluster_rank()], int(threadIdx.x), {any, 0.0f});
  }
  cluster_arrive();
  cluster_wait();
  return __syncthreads_or(of_ctas[threadIdx.x % Config::kCluster].x != 0.0f) != 0;
}
#endif

/// One cluster: 8 rows, or 64 at most, are little to read, and what follows does not wait for it
/// with its own loads. All rows are read only where columns are not alike. Built for an older GPU
/// than those with clusters it is empty, as are the kernels that want halves.
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
  float* const means = params.factors;  // each read by its own thread alone
  for (std::int64_t column = first; column < params.columns; column += kStep) {
    ColumnSamples const samples = sample_column(params, int(column));
    float const mean = samples.mean();
    means[column] = mean;
    if (samples.suffice()) {
      own.include(mean);
    }
  }
  ColumnStatistics const all = combine_statistics<Config>(own);
  if (first == 0) {
    *params.spread = all.are_spread();
  }
  if (!all.are_spread()) {
    return;
  }
  for (std::int64_t column = first; column < params.pitch; column += kStep) {
    float const mean = column < params.columns ? means[column] : NAN;
    params.factors[column] = ldexpf(1.0f, all.factor_exponent(mean));
  }
  cluster_arrive();
  cluster_wait();  // for all factors
  int const largest = max(0, all.factor_exponent(all.highest));
  int const warp = int(first) / 32;
  int const warps = kStep / 32;
  bool const loses = params.step == 1 ? some_row_loses(params, warp, warps, largest)
                                      : some_row_of_transpose_loses(params, warp, warps, largest);
  if (!any_in_cluster<Config>(loses)) {
    return;
  }
  for (std::int64_t column = first; column < params.columns; column += kStep) {
    params.factors[column] = held_factor(params.factors[column]);
  }
#endif
}

}  // namespace kernel
}  // namespace cutlass_ops
