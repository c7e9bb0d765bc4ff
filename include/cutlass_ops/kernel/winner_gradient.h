// The gradients of a linear layer of which one output per row, the winner, has a gradient: gathers
// and sums of rows, in place of two products with a matrix that is almost all zeros.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/fold_rows.h"
#include "cutlass_ops/kernel/winners.h"

namespace cutlass_ops {
namespace kernel {

struct WinnerGradientConfig {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 8;  ///< rows whose loads are in flight together
};

/// out[i] = coefficient(i) * weight[winners[i]]; the gradient of x.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads) gather_winners(
    __grid_constant__ GatherParams const params) {
  constexpr int kColumns = WinnerGradientConfig::kThreads * kVector;
  wait_for_predecessor();
  release_successor();
  std::int64_t const items = std::int64_t{params.winners.rows} * params.column_tiles;
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    std::int64_t const row = item / params.column_tiles;
    int const column = int(item % params.column_tiles) * kColumns + int(threadIdx.x) * kVector;
    if (column < params.columns) {
      float const coefficient = params.winners.coefficient(row);
      float const* const from =
          params.weight + params.winners.winners[row] * params.weight_stride + column;
      auto const w = epilogue::load_columns<kVector>(from, kVector, true);
      auto const y = epilogue::map(w, [&](float value) { return coefficient * value; });
      epilogue::store_columns<kVector>(params.out + row * params.columns + column, y, kVector,
                                       true);
    }
  }
}

/// Rows of one slice that have the window for their winner, in their order.
struct WinnerList {
  static constexpr int kThreads = WinnerGradientConfig::kThreads;
  static constexpr int kWarps = kThreads / 32;

  int row[2 * kThreads];
  float coefficient[2 * kThreads];
  int of_warp[kWarps];

  /// Appends those among the kThreads from `first` on to the `count` that are there, of which the
  /// CTA leaves room for as many; returns how many there are then. Called by the whole CTA, which
  /// meets before the list is read.
  CUTLASS_OPS_DEVICE int append(int count, Winners const& winners, int window, std::int64_t first,
                                std::int64_t end) {
    std::int64_t const mine = first + threadIdx.x;
    bool const wins = mine < end && winners.winners[mine] == window;
    if (!__syncthreads_or(wins)) {  // most of the time
      return count;
    }
    unsigned const votes = __ballot_sync(0xffffffffu, wins);
    int const lane = threadIdx.x % 32;
    int const warp = threadIdx.x / 32;
    if (lane == 0) {
      of_warp[warp] = __popc(votes);
    }
    __syncthreads();
    int place = count + __popc(votes & ((1u << lane) - 1));
    for (int other = 0; other < kWarps; ++other) {
      place += other < warp ? of_warp[other] : 0;
      count += of_warp[other];
    }
    if (wins) {
      row[place] = int(mine);
      coefficient[place] = winners.coefficient(mine);
    }
    return count;
  }
};

/// A vector of columns of the sum of a window's rows, and beside it, in one thread of the CTAs that
/// write the bias, the sum of the coefficients.
///
/// A window may win every row. The rows are added up kUnroll at a time, so that chains of additions
/// stay shorter than the rows are many; the coefficients are few, and float64 it is.
template <int kVector>
struct WindowSum {
  epilogue::Fragment<kVector> columns{};
  double coefficients = 0.0;

  CUTLASS_OPS_DEVICE void add(WinnerList const& list, int count, ScatterParams const& params,
                              int column, bool sums_coefficients) {
    constexpr int kUnroll = WinnerGradientConfig::kUnroll;
    if (column < params.columns) {
      float const* const x = params.x + column;
      int first = 0;
      for (; first + kUnroll <= count; first += kUnroll) {
        add_rows<kUnroll>(list, first, x, params.x_stride);
      }
      add_rest<kUnroll / 2>(list, first, count - first, x, params.x_stride);
    }
    for (int i = 0; sums_coefficients && i < count; ++i) {
      coefficients += double(list.coefficient[i]);
    }
  }

 private:
  /// All loads before the first is waited for.
  template <int kRows>
  CUTLASS_OPS_DEVICE void add_rows(WinnerList const& list, int first, float const* x,
                                   std::int64_t stride) {
    epilogue::Fragment<kVector> values[kRows];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      values[i] = load_once<kVector>(x + list.row[first + i] * stride);
    }
    epilogue::Fragment<kVector> sum{};
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kVector; ++j) {
        sum[j] = fmaf(list.coefficient[first + i], values[i][j], sum[j]);
      }
    }
    columns += sum;
  }

  /// Fewer than 2 * kRows, in batches of powers of two.
  template <int kRows>
  CUTLASS_OPS_DEVICE void add_rest(WinnerList const& list, int first, int rows, float const* x,
                                   std::int64_t stride) {
    if (rows & kRows) {
      add_rows<kRows>(list, first, x, stride);
      first += kRows;
    }
    if constexpr (kRows > 1) {
      add_rest<kRows / 2>(list, first, rows, x, stride);
    }
  }
};

/// Writes a window's gradient to the rows that it is the mean of. Nobody reads them soon.
template <int kVector>
CUTLASS_OPS_DEVICE void spread(SpreadTarget const& target, WindowSum<kVector> const& sum,
                               int window, int columns, int column, bool has_coefficients) {
  float const size = float(target.kernel_size);
  std::int64_t const first = std::int64_t{window} * target.kernel_size;
  int const rows = int(min(std::int64_t{target.kernel_size}, target.weight_rows - first));
  if (target.weight != nullptr && column < columns) {
    auto const share = epilogue::map(sum.columns, [&](float value) { return value / size; });
    float* to = target.weight + first * columns + column;
    for (int row = 0; row < rows; ++row, to += columns) {
      if constexpr (kVector == 4) {
        __stcs(reinterpret_cast<float4*>(to), make_float4(share[0], share[1], share[2], share[3]));
      } else {
        __stcs(to, share[0]);
      }
    }
  }
  for (int row = 0; target.bias != nullptr && has_coefficients && row < rows; ++row) {
    target.bias[first + row] = float(sum.coefficients / double(target.kernel_size));
  }
}

/// A CTA takes one tile of columns of one window: it looks for its rows among all of the slice, and
/// adds them up in their order. Behind the last window stands the remainder, which has no rows.
/// `partials`: [slices, windows, columns + 1], where there are several slices.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads, 3) scatter_winners(
    __grid_constant__ ScatterParams const params, __grid_constant__ SpreadTarget const target,
    float* const partials) {
  constexpr int kThreads = WinnerGradientConfig::kThreads;
  __shared__ WinnerList list;
  wait_for_predecessor();
  release_successor();
  int const tile = blockIdx.x % params.column_tiles;
  int const item = blockIdx.x / params.column_tiles;
  int const slice = item % params.slices;
  int const window = item / params.slices;
  int const column = (tile * kThreads + int(threadIdx.x)) * kVector;
  bool const sums_coefficients = tile == 0 && threadIdx.x == 0;
  WindowSum<kVector> sum;
  std::int64_t const begin = std::int64_t{slice} * params.slice_rows;
  std::int64_t const end = min(std::int64_t{params.winners.rows}, begin + params.slice_rows);
  int count = 0;
  for (std::int64_t first = begin; first < end; first += kThreads) {
    count = list.append(count, params.winners, window, first, end);
    if (count > kThreads || first + kThreads >= end) {
      __syncthreads();
      sum.add(list, count, params, column, sums_coefficients);
      count = 0;
    }
  }
  if (partials == nullptr) {
    spread(target, sum, window, params.columns, column, sums_coefficients);
    return;
  }
  float* const to =
      partials + (std::int64_t{slice} * params.windows + window) * (params.columns + 1);
  if (window < params.windows) {
    if (column < params.columns) {
      // The rows of partials are odd in length.
      epilogue::store_columns<kVector>(to + column, sum.columns, kVector, false);
    }
    if (sums_coefficients) {
      to[params.columns] = float(sum.coefficients);
    }
  }
}

/// Adds the slices up in their order.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads) spread_partials(
    __grid_constant__ ScatterParams const params, __grid_constant__ SpreadTarget const target,
    float const* const partials) {
  wait_for_predecessor();
  release_successor();
  int const tile = blockIdx.x % params.column_tiles;
  int const window = blockIdx.x / params.column_tiles;
  int const column = (tile * WinnerGradientConfig::kThreads + int(threadIdx.x)) * kVector;
  WindowSum<kVector> sum;
  for (int slice = 0; slice < params.slices && window < params.windows; ++slice) {
    float const* const from =
        partials + (std::int64_t{slice} * params.windows + window) * (params.columns + 1);
    if (column < params.columns) {
      sum.columns += epilogue::load_columns<kVector>(from + column, kVector, false);
    }
    sum.coefficients += double(from[params.columns]);
  }
  spread(target, sum, window, params.columns, column, tile == 0 && threadIdx.x == 0);
}

}  // namespace kernel
}  // namespace cutlass_ops
