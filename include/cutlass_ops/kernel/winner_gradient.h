// The gradient of the weight and bias of a linear layer of which one output per row, the winner,
// has a gradient: sums of rows, in place of a product with a matrix that is almost all zeros.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/cta_places.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

struct ScatterConfig {
  static constexpr int kThreads = WinnerGradientConfig::kThreads;
  static constexpr int kInFlight = 4;   ///< rows; most windows have none, and their CTAs just write
  static constexpr int kCtasPerSm = 4;  ///< five come, with 48 registers; asked for, they are
                                        ///< compiled with waits between the four loads
  static constexpr int kRowsPerThread = 4;
  static constexpr int kRows = kThreads * kRowsPerThread;  ///< looked at together
  static constexpr int kMostTerms = RunConfig::most_terms(kRows);
  static constexpr int kListTerms = 128;
  static_assert(kMostTerms <= kListTerms, "the terms of kRows rows fit in the list");
};

/// The windows of a thread's share of the kRows terms from `first` on, which are neighbours.
struct TermWindows {
  static constexpr int kRows = ScatterConfig::kRowsPerThread;

  int windows[kRows];

  CUTLASS_OPS_DEVICE static int begin(int first) { return first + kRows * int(threadIdx.x); }

  CUTLASS_OPS_DEVICE static TermWindows load(WinnerTerms const& terms, int first, int rows) {
    TermWindows some;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      int const row = begin(first) + i;
      some.windows[i] = row < rows ? terms.windows[row] : -1;
    }
    return some;
  }

  CUTLASS_OPS_DEVICE int count(int window) const {
    int found = 0;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      found += windows[i] == window ? 1 : 0;
    }
    return found;
  }
};

/// Terms of one window, in their order.
struct WindowTerms {
  int row[ScatterConfig::kListTerms];
  TermList<ScatterConfig::kListTerms> list;
  float coefficient[ScatterConfig::kListTerms];
  CtaPlaces<ScatterConfig::kThreads> places;

  /// Appends those among the kRows from `first` on to the `count` rows that are there, which leave
  /// room for kMostTerms; returns how many there are then. Called by the whole CTA.
  CUTLASS_OPS_DEVICE int append(int count, TermWindows const& of_thread, int window, int first) {
    int const mine = of_thread.count(window);
    if (!__syncthreads_or(mine)) {  // most of the time
      return count;
    }
    auto const range = places.template take<TermWindows::kRows>(mine);
    int place = count + range.first;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < TermWindows::kRows; ++i) {
      if (of_thread.windows[i] == window) {
        row[place++] = TermWindows::begin(first) + i;
      }
    }
    return count + range.all;
  }

  /// Fills the list with the terms of these rows, by the whole CTA.
  CUTLASS_OPS_DEVICE void take(int count, WinnerTerms const& terms, TermSource const& source) {
    __syncthreads();
    int const mine = threadIdx.x;
    if (mine < count) {
      list.row[mine] = source.row(terms.sources[row[mine]]);
      list.factor[mine] = terms.factors[row[mine]];
      coefficient[mine] = terms.coefficients[row[mine]];
    }
    __syncthreads();
  }
};

/// Writes a window's gradient to its share of the rows that it is the mean of. Nobody reads them
/// soon.
template <int kVector>
CUTLASS_OPS_DEVICE void spread(SpreadTarget const& target,
                               TermSum<kVector, ScatterConfig::kInFlight> const& sum, int window,
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
__global__ void __launch_bounds__(ScatterConfig::kThreads, ScatterConfig::kCtasPerSm) scatter_terms(
    __grid_constant__ ScatterParams const params, __grid_constant__ SpreadTarget const target) {
  using Config = ScatterConfig;
  __shared__ WindowTerms terms;
  wait_for_predecessor();
  release_successor();
  int const tile = blockIdx.x % params.column_tiles;
  int const share = blockIdx.x / params.column_tiles % params.shares;
  int const window = blockIdx.x / params.column_tiles / params.shares;
  int const column = (tile * Config::kThreads + int(threadIdx.x)) * kVector;
  bool const has_bias = target.bias != nullptr && tile == 0 && share == 0;
  TermSum<kVector, Config::kInFlight> sum;
  double of_coefficients = 0.0;
  int count = 0;
  TermWindows next = TermWindows::load(params.terms, 0, params.rows);
  for (int first = 0; first < params.rows; first += Config::kRows) {
    TermWindows const here = next;
    next = TermWindows::load(params.terms, first + Config::kRows, params.rows);
    count = terms.append(count, here, window, first);
    bool const last = first + Config::kRows >= params.rows;
    if (count > (last ? 0 : Config::kListTerms - Config::kMostTerms)) {
      terms.take(count, params.terms, params.source);
      if (column < params.source.columns) {
        sum.add(terms.list, 0, count, column);
      }
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
