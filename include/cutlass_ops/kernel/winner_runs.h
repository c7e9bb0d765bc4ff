// Sums the rows of x that share a window, slice by slice of the rows, before they are summed by
// window: a window that wins most rows would otherwise be the work of a few CTAs
// (docs/performance.md).
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/cta_places.h"
#include "cutlass_ops/kernel/winner_sums.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

/// A row of a slice, in its thread.
struct RunRow {
  int window = -1;
  float coefficient = 0.0f;
  int length = 0;  ///< rows of the slice that have this window
  int rank = 0;    ///< of these, before it
  int run = 0;     ///< the number of its run, if it has one

  CUTLASS_OPS_DEVICE bool in_run() const { return length >= RunConfig::kLeastLength; }
  CUTLASS_OPS_DEVICE bool leads() const { return in_run() && rank == 0; }
};

/// The runs of a slice: rows of one window, kLeastLength at least, in their order. All in shared
/// memory, and found by comparing every row with every other.
struct RunFinder {
  static constexpr int kRows = WinnerGradientConfig::kThreads;
  static constexpr int kMostRuns = RunConfig::sums_of(kRows);

  int window[kRows];
  int run_of[kRows];  ///< of a row that leads a run
  int length[kMostRuns];
  int end[kMostRuns];  ///< of each run in the list: where the next begins
  int runs;
  TermList<kRows> list;
  CtaPlaces<kRows> places;

  /// Called by the whole CTA, a thread a row; leaves the runs in the list, one after the other.
  /// Returns this thread's row.
  CUTLASS_OPS_DEVICE RunRow find(Winners const& winners, TermSource const& source,
                                 std::int64_t begin, int rows) {
    int const mine = threadIdx.x;
    RunRow row;
    if (mine < rows) {
      row.window = winners.winners[begin + mine];
      row.coefficient = winners.coefficient(begin + mine);
      window[mine] = row.window;
    }
    __syncthreads();
    int leader = mine;
    CUTLASS_OPS_UNROLL_BY(8)
    for (int other = mine < rows ? rows - 1 : -1; other >= 0; --other) {
      if (window[other] == row.window) {
        leader = other;
        ++row.length;
        row.rank += other < mine ? 1 : 0;
      }
    }
    auto const number = places.template take<1>(row.leads() ? 1 : 0);
    if (row.leads()) {
      run_of[mine] = number.first;
      length[number.first] = row.length;
    }
    if (mine == 0) {
      runs = number.all;
    }
    __syncthreads();
    if (row.in_run()) {
      row.run = run_of[leader];
      int first = 0;
      for (int other = 0; other < row.run; ++other) {
        first += length[other];
      }
      list.row[first + row.rank] = source.row(int(begin + mine));
      list.factor[first + row.rank] = row.coefficient;
      if (row.leads()) {
        end[row.run] = first + row.length;
      }
    }
    __syncthreads();
    return row;
  }

  /// What stands for a row among the terms: `sum` is where the sum of its run goes, if it leads
  /// one.
  CUTLASS_OPS_DEVICE void write(WinnerTerms const& terms, std::int64_t begin, RunRow const& mine,
                                std::int64_t sum) const {
    bool const alone = !mine.in_run();
    bool const leads = mine.leads();
    double total = 0.0;
    for (int i = leads ? end[mine.run] - mine.length : 0; leads && i < end[mine.run]; ++i) {
      total += double(list.factor[i]);
    }
    std::int64_t const row = begin + threadIdx.x;
    terms.windows[row] = alone || leads ? mine.window : -1;
    terms.sources[row] = alone ? int(row) : ~int(sum);
    terms.factors[row] = alone ? mine.coefficient : 1.0f;
    terms.coefficients[row] = alone ? mine.coefficient : float(total);
  }
};

/// A CTA takes one slice of the rows and one tile of columns. It waits before it releases, which
/// gather_and_scatter relies on (predecessor.h). Without a number of CTAs an SM in its bounds the
/// compiler keeps to 32 registers, and waits for every row by itself.
template <int kVector>
__global__ void __launch_bounds__(WinnerGradientConfig::kThreads, 1) sum_runs(
    __grid_constant__ Winners const winners, __grid_constant__ RunParams const params) {
  constexpr int kInFlight = 16;  // this waits for memory, and has few CTAs
  __shared__ RunFinder finder;
  wait_for_predecessor();
  release_successor();
  int const tile = int(blockIdx.x) % params.column_tiles;
  std::int64_t const slice = int(blockIdx.x) / params.column_tiles;
  std::int64_t const begin = slice * params.slice_rows;
  int const rows = int(min(std::int64_t{params.slice_rows}, winners.rows - begin));
  std::int64_t const first_sum = slice * RunConfig::sums_of(params.slice_rows);
  TermSource const& source = params.source;
  RunRow const mine = finder.find(winners, source, begin, rows);
  if (tile == 0 && threadIdx.x < rows) {
    finder.write(params.terms, begin, mine, first_sum + mine.run);
  }
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
