// The gradients of a linear layer of which one output per row, the winner, has a gradient: gathers
// and sums of rows, in place of two products with a matrix that is almost all zeros.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

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

/// The terms of one window, in their order.
struct WindowTerms {
  static constexpr int kThreads = WinnerGradientConfig::kThreads;
  static constexpr int kWarps = WinnerGradientConfig::kWarps;

  TermList list;
  float coefficient[TermList::kRows];
  int of_warp[kWarps];

  /// Appends those among the kThreads from `first` on to the `count` that are there, of which the
  /// CTA leaves room for as many; returns how many there are then. Called by the whole CTA, which
  /// meets before the list is read.
  CUTLASS_OPS_DEVICE int append(int count, WinnerTerms const& terms, int window, std::int64_t first,
                                int rows) {
    std::int64_t const mine = first + threadIdx.x;
    bool const wins = mine < rows && terms.windows[mine] == window;
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
      list.source[place] = terms.sources[mine];
      list.factor[place] = terms.factors[mine];
      coefficient[place] = terms.coefficients[mine];
    }
    return count;
  }
};

/// Writes a window's gradient to its share of the rows that it is the mean of. Nobody reads them
/// soon.
template <int kVector>
CUTLASS_OPS_DEVICE void spread(SpreadTarget const& target, TermSum<kVector> const& sum, int window,
                               int share, int shares, int columns, int column) {
  if (target.weight == nullptr || column >= columns) {
    return;
  }
  std::int64_t const first = std::int64_t{window} * target.kernel_size;
  int const rows = int(min(std::int64_t{target.kernel_size}, target.weight_rows - first));
  float const size = float(target.kernel_size);
  auto const mean = epilogue::map(sum.columns, [&](float value) { return value / size; });
  float* to = target.weight + (first + share) * columns + column;
  for (int row = share; row < rows; row += shares, to += std::int64_t{shares} * columns) {
    if constexpr (kVector == 4) {
      __stcs(reinterpret_cast<float4*>(to), make_float4(mean[0], mean[1], mean[2], mean[3]));
    } else {
      __stcs(to, mean[0]);
    }
  }
}

/// By the whole CTA.
CUTLASS_OPS_DEVICE void spread_bias(SpreadTarget const& target, float mean, int window) {
  std::int64_t const first = std::int64_t{window} * target.kernel_size;
  std::int64_t const end = min(std::int64_t{target.weight_rows}, first + target.kernel_size);
  for (std::int64_t row = first + threadIdx.x; row < end; row += WinnerGradientConfig::kThreads) {
    target.bias[row] = mean;
  }
}

/// A CTA takes one tile of columns of one window: it looks for its terms among all, and adds them
/// up in their order. Behind the last window stands the remainder, which has no terms. Coefficients
/// are few: one thread adds them, in float64.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads, 3) scatter_terms(
    __grid_constant__ ScatterParams const params, __grid_constant__ SpreadTarget const target) {
  constexpr int kThreads = WinnerGradientConfig::kThreads;
  __shared__ WindowTerms terms;
  wait_for_predecessor();
  release_successor();
  int const tile = blockIdx.x % params.column_tiles;
  int const share = blockIdx.x / params.column_tiles % params.shares;
  int const window = blockIdx.x / params.column_tiles / params.shares;
  int const column = (tile * kThreads + int(threadIdx.x)) * kVector;
  bool const has_bias = target.bias != nullptr && tile == 0 && share == 0;
  TermSum<kVector> sum;
  double of_coefficients = 0.0;
  int count = 0;
  for (std::int64_t first = 0; first < params.rows; first += kThreads) {
    count = terms.append(count, params.terms, window, first, params.rows);
    if (count > kThreads || first + kThreads >= params.rows) {
      __syncthreads();
      sum.add(terms.list, 0, count, params.source, column);
      for (int i = 0; has_bias && threadIdx.x == 0 && i < count; ++i) {
        of_coefficients += double(terms.coefficient[i]);
      }
      count = 0;
    }
  }
  spread(target, sum, window, share, params.shares, params.source.columns, column);
  if (has_bias) {
    __shared__ float mean;
    if (threadIdx.x == 0) {
      mean = float(of_coefficients / double(target.kernel_size));
    }
    __syncthreads();
    spread_bias(target, mean, window);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
