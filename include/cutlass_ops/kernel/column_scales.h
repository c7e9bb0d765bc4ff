// The scales of the rows of a transposed matrix, which split_columns.h splits into fp16 halves:
// each follows from the largest element of a column of the source.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/cluster.h"
#include "cutlass_ops/kernel/column_exponents.h"
#include "cutlass_ops/kernel/split_target.h"

namespace cutlass_ops {
namespace kernel {

/// A cluster takes so many columns of the source, and each of its CTAs a share of the rows.
struct ColumnScalesConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kColumns = 128;  ///< a fragment a lane
  static constexpr int kCluster = 8;
  static constexpr int kColumnsPerCta = kColumns / kCluster;  ///< that it writes the scales of
  static constexpr int kUnroll = 8;                           ///< rows in flight
  static constexpr int kMinCtas = 4;  ///< so that those for 8192 columns are one wave on an H200
};

/// The exponent of the largest element: -inf of zeros alone, inf where one is not finite.
struct LargestExponent {
  float exponent = -INFINITY;
  float has_nan = 0.0f;  ///< or 1

  /// Of an element's magnitude; its column's factor has this exponent.
  CUTLASS_OPS_DEVICE static LargestExponent of(float magnitude, float factor_exponent) {
    if (!(magnitude < INFINITY)) {
      return {INFINITY, magnitude == magnitude ? 0.0f : 1.0f};
    }
    return {magnitude > 0.0f ? float(ilogbf(magnitude)) + factor_exponent : -INFINITY, 0.0f};
  }

  CUTLASS_OPS_DEVICE void take(LargestExponent const& other) {
    exponent = fmaxf(exponent, other.exponent);
    has_nan = fmaxf(has_nan, other.has_nan);
  }

  /// As split_row and split_balanced_row have it.
  CUTLASS_OPS_DEVICE gemm::Fp16Scale scale_back() const {
    if (!(exponent < INFINITY)) {
      return gemm::Fp16Scale::none(has_nan > 0.0f);
    }
    bool const zero = exponent == -INFINITY;
    return (zero ? gemm::Fp16Scale::of(0.0f) : gemm::Fp16Scale::of_exponent(int(exponent)))
        .inverse();
  }
};

/// The factor of a column of the result, which is a row of the source; 1 where there is none.
CUTLASS_OPS_DEVICE float factor_of(SplitRowsParams const& params, bool spread, int column) {
  float const factor = spread && column < params.columns ? params.factors[column] : 1.0f;
  return params.divides ? inverse_factor(factor) : factor;
}

/// Four neighbouring columns of the source, in this warp's rows among [begin, end). The largest
/// magnitude is that with the largest bits, NaN above infinity; with factors it is not.
template <class Config>
CUTLASS_OPS_DEVICE void scan_columns(SplitRowsParams const& params, bool spread, int begin, int end,
                                     int column, LargestExponent (&largest)[4]) {
  constexpr int kUnroll = Config::kUnroll;
  int const left = max(params.rows - column, 0);
  float const* const source = params.source + column;
  unsigned bits[4] = {};
  for (int first = begin + int(threadIdx.x) / 32; first < end; first += Config::kWarps * kUnroll) {
    epilogue::Fragment<4> z[kUnroll];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      int const row = first + i * Config::kWarps;
      z[i] = epilogue::load_columns<4>(source + row * params.stride, row < end ? left : 0,
                                       params.vectorized);
    }
    if (!spread) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < 4 * kUnroll; ++i) {
        bits[i % 4] = max(bits[i % 4], __float_as_uint(fabsf(z[i / 4][i % 4])));
      }
      continue;
    }
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      int const row = first + i * Config::kWarps;
      float const exponent = float(exponent_of_factor(factor_of(params, row < end, row)));
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        largest[j].take(LargestExponent::of(fabsf(z[i][j]), exponent));
      }
    }
  }
  CUTLASS_OPS_UNROLL
  for (int j = 0; j < 4; ++j) {
    largest[j].take(LargestExponent::of(__uint_as_float(bits[j]), 0.0f));
  }
}

/// Reads the source once; what is split next finds in L2 what fits there. Built for an older GPU
/// than those with clusters it is empty, as are the kernels that want halves.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinCtas) column_scales(
    __grid_constant__ SplitRowsParams const params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ LargestExponent of_warps[Config::kWarps][Config::kColumns];
  __shared__ float2 of_ctas[Config::kCluster][Config::kColumnsPerCta];
  cluster_arrive_relaxed();
  wait_for_predecessor();
  release_successor();
  int const rank = cluster_rank();
  int const first_column = int(blockIdx.x) / Config::kCluster * Config::kColumns;
  int const share = (params.columns + Config::kCluster - 1) / Config::kCluster;
  int const begin = min(rank * share, params.columns);
  int const lane = int(threadIdx.x) % 32;
  LargestExponent largest[4];
  scan_columns<Config>(params, *params.spread != 0, begin, min(begin + share, params.columns),
                       first_column + 4 * lane, largest);
  CUTLASS_OPS_UNROLL
  for (int j = 0; j < 4; ++j) {
    of_warps[threadIdx.x / 32][4 * lane + j] = largest[j];
  }
  __syncthreads();
  cluster_wait();  // every CTA has started
  int const thread = int(threadIdx.x);
  if (thread < Config::kColumns) {
    LargestExponent all;
    for (int warp = 0; warp < Config::kWarps; ++warp) {
      all.take(of_warps[warp][thread]);
    }
    store_remote(&of_ctas[rank][thread % Config::kColumnsPerCta], thread / Config::kColumnsPerCta,
                 {all.exponent, all.has_nan});
  }
  cluster_arrive();
  cluster_wait();
  int const column = first_column + rank * Config::kColumnsPerCta + thread;
  if (thread < Config::kColumnsPerCta && column < params.rows) {
    LargestExponent all;
    for (auto const& of_cta : of_ctas) {
      all.take({of_cta[thread].x, of_cta[thread].y});
    }
    params.scales[column] = all.scale_back();
  }
#endif
}

}  // namespace kernel
}  // namespace cutlass_ops
