// Folds a weight for average pooling: the mean of every k consecutive rows, in one pass at memory
// speed.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// A CTA takes one window of kernel_size rows and kLanes vectors of columns; kGroups groups of
/// threads share out the rows, which matters where windows are long and few.
template <int kGroups_>
struct FoldRowsConfig {
  static constexpr int kThreads = 256;
  static constexpr int kGroups = kGroups_;
  static constexpr int kLanes = kThreads / kGroups;
  static constexpr int kUnroll = 8;  ///< independent loads in flight per thread
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

/// Adds the sums of all groups onto those of group 0, in the order of the groups.
template <class Config, int kVector>
CUTLASS_OPS_DEVICE void add_groups(double (&sum)[kVector], int group, int lane) {
  __shared__ double sums[Config::kGroups][kVector][Config::kLanes];
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kVector; ++i) {
    sums[group][i][lane] = sum[i];
  }
  __syncthreads();
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kVector; ++i) {
    for (int other = 1; group == 0 && other < Config::kGroups; ++other) {
      sum[i] += sums[other][i][lane];
    }
  }
}

/// Sums in float64: the mean is the correctly rounded one up to a rounding, and k large weights do
/// not overflow. The additions hide behind the loads (67 M of them against 63 us of reading at the
/// headline size).
template <class Config, int kVector>
__global__ void __launch_bounds__(Config::kThreads) fold_rows(
    __grid_constant__ FoldRowsParams const params) {
  int const window = blockIdx.x / params.column_tiles;
  int const tile = blockIdx.x % params.column_tiles;
  int const lane = threadIdx.x % Config::kLanes;
  int const group = threadIdx.x / Config::kLanes;
  int const column = (tile * Config::kLanes + lane) * kVector;
  int const valid = params.columns - column;

  double sum[kVector] = {};
  if (valid > 0) {
    float const* base =
        params.weight + std::int64_t{window} * params.kernel_size * params.weight_stride + column;
    CUTLASS_OPS_UNROLL_BY(Config::kUnroll)
    for (int row = group; row < params.kernel_size; row += Config::kGroups) {
      auto const w =
          epilogue::load_columns<kVector>(base + row * params.weight_stride, valid, true);
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kVector; ++i) {
        sum[i] += double(w[i]);
      }
    }
  }
  if constexpr (Config::kGroups > 1) {
    add_groups<Config>(sum, group, lane);
  }
  if (group == 0 && valid > 0) {
    epilogue::Fragment<kVector> mean;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kVector; ++i) {
      mean[i] = float(sum[i] / double(params.kernel_size));
    }
    epilogue::store_columns<kVector>(params.out + std::int64_t{window} * params.columns + column,
                                     mean, valid, true);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
