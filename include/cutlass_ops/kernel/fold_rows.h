// Folds a weight for average pooling: the mean of every k consecutive rows, in one pass at memory
// speed, and of every k elements of its bias beside it.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/epilogue/warp_reduce.h"

namespace cutlass_ops {
namespace kernel {

/// A CTA takes one window of kernel_size rows and kLanes vectors of columns. kGroups groups of
/// threads share out the rows, which matters where windows are long and few. A thread has kUnroll
/// loads in flight; with kMinCtas CTAs an SM its registers still hold what they load.
template <int kLanes_, int kGroups_, int kUnroll_, int kMinCtas_>
struct FoldRowsConfig {
  static constexpr int kLanes = kLanes_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kUnroll = kUnroll_;
  static constexpr int kMinCtas = kMinCtas_;
  static constexpr int kThreads = kLanes * kGroups;
};

struct FoldRowsParams {
  float const* weight;         ///< [>= windows * kernel_size, columns], unit column stride
  std::int64_t weight_stride;  ///< elements
  float* out;                  ///< [windows, columns], contiguous
  float const* bias;           ///< [>= windows * kernel_size], or nullptr for none
  float* bias_out;             ///< [windows]
  int windows;
  int columns;
  int kernel_size;
  int column_tiles;
};

/// A whole vector of columns, which nobody will read again soon: the weight of a large layer would
/// drive x out of L2, and there write back what others have left dirty (91.8 against 89.7 % of the
/// bandwidth of a copy).
template <int kVector>
CUTLASS_OPS_DEVICE epilogue::Fragment<kVector> load_once(float const* pointer) {
  static_assert(kVector == 1 || kVector == 4, "what an instruction loads");
  if constexpr (kVector == 1) {
    return {__ldcs(pointer)};
  } else {
    float4 const v = __ldcs(reinterpret_cast<float4 const*>(pointer));
    return {v.x, v.y, v.z, v.w};
  }
}

/// Adds kRows rows to the sums, all of them loaded before the first is waited for: nothing but the
/// number of bytes in flight makes this kernel fast.
template <int kRows, int kVector>
CUTLASS_OPS_DEVICE void add_rows(double (&sum)[kVector], float const* first, std::int64_t step) {
  epilogue::Fragment<kVector> w[kRows];
  CUTLASS_OPS_UNROLL
  for (int row = 0; row < kRows; ++row) {
    w[row] = load_once<kVector>(first + row * step);
  }
  CUTLASS_OPS_UNROLL
  for (int row = 0; row < kRows; ++row) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kVector; ++i) {
      sum[i] += double(w[row][i]);
    }
  }
}

/// The last `rows` rows, fewer than 2 * kRows, in batches of powers of two.
template <int kRows, int kVector>
CUTLASS_OPS_DEVICE void add_rest(double (&sum)[kVector], float const* first, std::int64_t step,
                                 int rows) {
  if (rows & kRows) {
    add_rows<kRows>(sum, first, step);
    first += kRows * step;
  }
  if constexpr (kRows > 1) {
    add_rest<kRows / 2>(sum, first, step, rows);
  }
}

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

/// One window of the bias, by one warp. The sum of the lanes is a butterfly: its order is fixed.
CUTLASS_OPS_DEVICE void fold_bias(float const* bias, float* bias_out, int kernel_size, int window,
                                  int lane) {
  float const* const first = bias + std::int64_t{window} * kernel_size;
  double sum = 0.0;
  for (int row = lane; row < kernel_size; row += 32) {
    sum += double(first[row]);
  }
  sum = epilogue::warp_reduce<epilogue::SumMonoid>(sum);
  if (lane == 0) {
    bias_out[window] = float(sum / double(kernel_size));
  }
}

/// Sums in float64: the mean is the correctly rounded one up to a rounding, and k large weights do
/// not overflow. The conversions and additions hide behind the loads: 21 us of them against 63 us
/// of reading at the headline size. Rows are whole vectors: columns % kVector is 0.
template <class Config, int kVector>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinCtas) fold_rows(
    __grid_constant__ FoldRowsParams const params) {
  int const window = blockIdx.x / params.column_tiles;
  int const tile = blockIdx.x % params.column_tiles;
  int const lane = threadIdx.x % Config::kLanes;
  int const group = threadIdx.x / Config::kLanes;
  int const column = (tile * Config::kLanes + lane) * kVector;
  bool const inside = column < params.columns;

  double sum[kVector] = {};
  if (inside) {
    std::int64_t const row = std::int64_t{window} * params.kernel_size + group;
    std::int64_t const step = Config::kGroups * params.weight_stride;
    float const* first = params.weight + row * params.weight_stride + column;
    int rows = (params.kernel_size - group + Config::kGroups - 1) / Config::kGroups;
    for (; rows >= Config::kUnroll; rows -= Config::kUnroll, first += Config::kUnroll * step) {
      add_rows<Config::kUnroll>(sum, first, step);
    }
    add_rest<Config::kUnroll / 2>(sum, first, step, rows);
  }
  if constexpr (Config::kGroups > 1) {
    add_groups<Config>(sum, group, lane);
  }
  if (group == 0 && inside) {
    epilogue::Fragment<kVector> mean;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kVector; ++i) {
      mean[i] = float(sum[i] / double(params.kernel_size));
    }
    epilogue::store_columns<kVector>(params.out + std::int64_t{window} * params.columns + column,
                                     mean, kVector, true);
  }
  // Behind the loads of the weight, and by a warp of one CTA in column_tiles.
  if (params.bias != nullptr && tile == 0 && threadIdx.x < 32) {
    fold_bias(params.bias, params.bias_out, params.kernel_size, window, int(threadIdx.x));
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
