// The gradients of a linear layer of which one output per row, the winner, has a gradient: for the
// weight and bias sums of rows, in place of a product with a matrix that is almost all zeros.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/cta_places.h"
#include "cutlass_ops/kernel/window_order.h"
#include "cutlass_ops/kernel/winner_rows.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

struct ScatterConfig {
  static constexpr int kThreads = WinnerGradientConfig::kThreads;
  static constexpr int kInFlight = 8;   ///< rows
  static constexpr int kCtasPerSm = 4;  ///< 64 registers hold six of these rows before one is read
  using Rows = RowWindows<kThreads>;    ///< looked at together
  using Order = WindowOrder<kThreads>;
  static constexpr int kMostTerms = RunConfig::most_terms(Rows::kRows);
  static constexpr int kListTerms = 128;
  static_assert(kMostTerms <= kListTerms, "the terms of Rows::kRows rows fit in the list");
};

/// Terms of one window, in their order.
struct WindowTerms {
  using Rows = ScatterConfig::Rows;

  int row[ScatterConfig::kListTerms];
  TermList<ScatterConfig::kListTerms> list;
  float coefficient[ScatterConfig::kListTerms];
  CtaPlaces<ScatterConfig::kThreads> places;

  /// Appends those among the Rows::kRows from `first` on to the `count` rows that are there, which
  /// leave room for kMostTerms; returns how many there are then. Called by the whole CTA.
  CUTLASS_OPS_DEVICE int append(int count, Rows const& of_thread, int window, int first) {
    int const mine = of_thread.count(window);
    if (!__syncthreads_or(mine)) {  // most of the time
      return count;
    }
    auto const range = places.template take<Rows::kEach>(mine);
    int place = count + range.first;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Rows::kEach; ++i) {
      if (of_thread.windows[i] == window) {
        row[place++] = Rows::begin(first) + i;
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

/// Writes a window's gradient to its share of the rows that it is the mean of.
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
    epilogue::store_columns<kVector>(to, mean, kVector, true);
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

/// The sum of a window's terms, in their order, and, for the bias, that of their coefficients,
/// which are few: one thread adds them, in float64.
template <int kVector>
struct WindowSum {
  TermSum<kVector, ScatterConfig::kInFlight> columns;
  double coefficients = 0.0;

  /// By the whole CTA.
  CUTLASS_OPS_DEVICE void add(WindowTerms& terms, ScatterParams const& params, int rows, int window,
                              int column, bool for_bias) {
    using Rows = ScatterConfig::Rows;
    constexpr int kRoom = ScatterConfig::kListTerms - ScatterConfig::kMostTerms;
    int count = 0;
    Rows next = Rows::load(params.terms.windows, 0, rows);
    for (int first = 0; first < rows; first += Rows::kRows) {
      Rows const here = next;
      next = Rows::load(params.terms.windows, first + Rows::kRows, rows);
      count = terms.append(count, here, window, first);
      bool const last = first + Rows::kRows >= rows;
      if (count > (last ? 0 : kRoom)) {
        terms.take(count, params.terms, params.source);
        if (column < params.source.columns) {
          columns.add(terms.list, 0, count, column);
        }
        for (int i = 0; for_bias && threadIdx.x == 0 && i < count; ++i) {
          coefficients += double(terms.coefficient[i]);
        }
        count = 0;
      }
    }
  }
};

/// A CTA takes one tile of columns of one window, and its share of the rows to write. Behind the
/// last window stands the remainder, which has no terms. Zeros need not wait for the sums of runs.
template <int kVector>
CUTLASS_OPS_DEVICE void scatter_terms(Winners const& winners, ScatterParams const& params,
                                      SpreadTarget const& target, int item) {
  using Config = ScatterConfig;
  __shared__ Config::Order order;
  __shared__ WindowTerms terms;
  int const tile = item % params.column_tiles;
  int const share = item / params.column_tiles % params.shares;
  int const turn = item / params.column_tiles / params.shares;
  auto const place = order.at(turn / params.block_windows, winners, params.block_windows);
  int const window = place.block * params.block_windows + turn % params.block_windows;
  int const column = (tile * Config::kThreads + int(threadIdx.x)) * kVector;
  bool const writes_bias = target.bias != nullptr && tile == 0 && share == 0;
  WindowSum<kVector> sum;
  if (place.wins) {
    wait_for_predecessor();
    sum.add(terms, params, winners.rows, window, column, writes_bias);
  }
  spread(target, sum.columns, window, share, params.shares, params.source.columns, column);
  if (writes_bias) {
    __shared__ float mean;
    if (threadIdx.x == 0) {
      mean = float(sum.coefficients / double(target.kernel_size));
    }
    __syncthreads();
    spread_bias(target, mean, window);
  }
}

/// The gradient of x first, so that the sums of runs are there before a CTA waits for them. All
/// else that this kernel reads is older than sum_runs, so it starts at once (predecessor.h).
template <int kVector>
__global__ void __launch_bounds__(ScatterConfig::kThreads, ScatterConfig::kCtasPerSm)
gather_and_scatter(__grid_constant__ WinnerGradientParams const params) {
  if (!params.after_runs) {
    wait_for_predecessor();
  }
  release_successor();
  int const item = int(blockIdx.x);
  if (item < params.gather_ctas) {
    gather_winners<kVector>(params.winners, params.gather, item);
  } else {
    scatter_terms<kVector>(params.winners, params.scatter, params.target,
                           item - params.gather_ctas);
  }
  if (item == int(gridDim.x) - 1) {
    wait_for_predecessor();
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
