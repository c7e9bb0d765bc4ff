// Sums the rows of x that share a window, slice by slice of the rows, before they are summed by
// window: a window that wins most rows would otherwise be the work of a few CTAs
// (docs/performance.md).
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

/// The runs of a slice: rows of one window, kLeastLength at least, in their order. All in shared
/// memory, and found by comparing every row with every other.
struct RunFinder {
  static constexpr int kRows = WinnerGradientConfig::kThreads;

  int window[kRows];
  float coefficient[kRows];
  int leader[kRows];  ///< the first row of the same window
  int length[kRows];  ///< rows of the same window
  int end[kRows];     ///< of each run in the list: where the next begins
  int runs;
  TermList<kRows> list;

  CUTLASS_OPS_DEVICE bool in_run(int row) const { return length[row] >= RunConfig::kLeastLength; }

  /// Called by the whole CTA, a thread a row; leaves the runs in the list, one after the other.
  /// Returns the number of this thread's run, if its row is the leader of one.
  CUTLASS_OPS_DEVICE int find(Winners const& winners, TermSource const& source, std::int64_t begin,
                              int rows) {
    int const mine = threadIdx.x;
    if (mine < rows) {
      window[mine] = winners.winners[begin + mine];
      coefficient[mine] = winners.coefficient(begin + mine);
    }
    __syncthreads();
    if (mine < rows) {
      int first = mine;
      int same = 0;
      for (int other = rows - 1; other >= 0; --other) {
        if (window[other] == window[mine]) {
          first = other;
          ++same;
        }
      }
      leader[mine] = first;
      length[mine] = same;
    }
    __syncthreads();
    int run = 0;
    int place = 0;
    int all = 0;
    for (int other = 0; other < rows; ++other) {
      bool const leads = in_run(other) && leader[other] == other;
      all += leads ? 1 : 0;
      if (mine < rows) {
        run += leads && other < leader[mine] ? 1 : 0;
        bool const before =
            leader[other] < leader[mine] || (leader[other] == leader[mine] && other < mine);
        place += in_run(other) && before ? 1 : 0;
      }
    }
    if (mine == 0) {
      runs = all;
    }
    if (mine < rows && in_run(mine)) {
      list.row[place] = source.row(int(begin + mine));
      list.factor[place] = coefficient[mine];
      if (leader[mine] == mine) {
        end[run] = place + length[mine];
      }
    }
    __syncthreads();
    return run;
  }

  /// What stands for a row among the terms: `sum` is where the sum of its run goes, if it leads
  /// one.
  CUTLASS_OPS_DEVICE void write(WinnerTerms const& terms, std::int64_t begin, int run,
                                std::int64_t sum) const {
    int const mine = threadIdx.x;
    bool const alone = !in_run(mine);
    bool const leads = !alone && leader[mine] == mine;
    double total = 0.0;
    for (int i = leads ? end[run] - length[mine] : 0; leads && i < end[run]; ++i) {
      total += double(list.factor[i]);
    }
    std::int64_t const row = begin + mine;
    terms.windows[row] = alone || leads ? window[mine] : -1;
    terms.sources[row] = alone ? int(row) : ~int(sum);
    terms.factors[row] = alone ? coefficient[mine] : 1.0f;
    terms.coefficients[row] = alone ? coefficient[mine] : float(total);
  }
};

/// A CTA takes one slice of the rows and one tile of columns.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads, 3) sum_runs(
    __grid_constant__ RunParams const params) {
  constexpr int kInFlight = 8;
  __shared__ RunFinder finder;
  wait_for_predecessor();
  release_successor();
  int const tile = blockIdx.x % params.column_tiles;
  std::int64_t const slice = blockIdx.x / params.column_tiles;
  std::int64_t const begin = slice * params.slice_rows;
  int const rows = int(min(std::int64_t{params.slice_rows}, params.winners.rows - begin));
  std::int64_t const first_sum = slice * RunConfig::sums_of(params.slice_rows);
  int const mine = finder.find(params.winners, params.source, begin, rows);
  if (tile == 0 && threadIdx.x < rows) {
    finder.write(params.terms, begin, mine, first_sum + mine);
  }
  TermSource const& source = params.source;
  int const column = (tile * WinnerGradientConfig::kThreads + int(threadIdx.x)) * kVector;
  for (int run = 0; column < source.columns && run < finder.runs; ++run) {
    TermSum<kVector, kInFlight> sum;
    sum.add(finder.list, run > 0 ? finder.end[run - 1] : 0, finder.end[run], column);
    epilogue::store_columns<kVector>(source.sums + (first_sum + run) * source.columns + column,
                                     sum.columns, kVector, true);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
