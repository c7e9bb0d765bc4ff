// Folds a weight for average pooling: the mean of every k consecutive rows, in one pass at memory speed.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// A CTA takes 64 vectors of columns of one window; four groups of 64 threads share out its rows.
struct FoldRowsConfig {
  static constexpr int kLanes = 64;
  static constexpr int kGroups = 4;
  static constexpr int kThreads = kLanes * kGroups;
  static constexpr int kUnroll = 4;  ///< independent loads in flight per thread
};

struct FoldRowsParams {
  float const* weight;         ///< [>= windows * kernel_size, columns], unit column stride
  std::int64_t weight_stride;  ///< elements
  float* out;                  ///< [windows, columns], contiguous
  int windows;
  int columns;
  int kernel_size;
  int column_tiles;
};

/// Sums in float64: the mean is the correctly rounded one up to a rounding, and k large weights do not overflow. The
/// additions hide behind the loads (67 M of them against 63 us of reading at the headline size).
template <int kVector>
__global__ void __launch_bounds__(FoldRowsConfig::kThreads) fold_rows(__grid_constant__ FoldRowsParams const params) {
  using Config = FoldRowsConfig;
  __shared__ double sums[Config::kGroups][kVector][Config::kLanes];

  int const window = blockIdx.x / params.column_tiles;
  int const tile = blockIdx.x % params.column_tiles;
  int const lane = threadIdx.x % Config::kLanes;
  int const group = threadIdx.x / Config::kLanes;
  int const column = (tile * Config::kLanes + lane) * kVector;
  int const valid = params.columns - column;

  double sum[kVector] = {};
  if (valid > 0) {
    float const* base = params.weight + std::int64_t{window} * params.kernel_size * params.weight_stride + column;
    CUTLASS_OPS_UNROLL_BY(Config::kUnroll)
    for (int row = group; row < params.kernel_size; row += Config::kGroups) {
      auto const w = epilogue::load_columns<kVector>(base + row * params.weight_stride, valid, true);
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kVector; ++i) {
        sum[i] += double(w[i]);
      }
    }
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kVector; ++i) {
    sums[group][i][lane] = sum[i];
  }
  __syncthreads();
  if (group == 0 && valid > 0) {
    epilogue::Fragment<kVector> mean;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kVector; ++i) {
      double total = sum[i];
      CUTLASS_OPS_UNROLL
      for (int other = 1; other < Config::kGroups; ++other) {
        total += sums[other][i][lane];
      }
      mean[i] = float(total / double(params.kernel_size));
    }
    epilogue::store_columns<kVector>(params.out + std::int64_t{window} * params.columns + column, mean, valid, true);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
