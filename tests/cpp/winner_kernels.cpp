// The kernels that train op B, for tests/test_winner_kernels.py: the very code that runs on the
// GPU.
#include "host_cta.h"

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/row_argmax.h"
#include "cutlass_ops/kernel/winner_gradient.h"
#include "cutlass_ops/kernel/winner_runs.h"

using namespace cutlass_ops;
using kernel::RunConfig;
using kernel::WinnerGradientConfig;

namespace {

/// `shares` of 0: there is no gradient of the weight.
template <int kVector>
void run(kernel::RunParams runs, kernel::WinnerGradientParams params, int shares,
         int block_windows) {
  constexpr int kThreads = WinnerGradientConfig::kThreads;
  int const rows = params.winners.rows;
  int const tiles = std::max(1, int(ceil_div(params.gather.columns, kThreads * kVector)));
  runs.column_tiles = tiles;
  params.gather.column_tiles = tiles;
  if (params.gather.out != nullptr) {
    params.gather_ctas = int(ceil_div(rows, kernel::GatherConfig::kRows)) * tiles;
  }
  params.after_runs = shares > 0 && rows > 0;
  int ctas = params.gather_ctas;
  if (shares > 0) {
    host_cta::run_grid(int(ceil_div(rows, runs.slice_rows)) * tiles, kThreads,
                       [&] { kernel::sum_runs<kVector>(params.winners, runs); });
    int const windows = int(ceil_div(params.target.weight_rows, params.target.kernel_size));
    params.scatter = {runs.terms, runs.source, tiles, shares, block_windows};
    ctas += int(ceil_div(windows, block_windows)) * block_windows * tiles * shares;
  }
  host_cta::run_grid(ctas, kThreads, [&] { kernel::gather_and_scatter<kVector>(params); });
}

struct NoRepair {
  void refine(std::int64_t, int) const {}
};

template <int kThreadsPerRow, int kWidth>
void run_argmax(kernel::RowArgmaxParams const& params, int ctas) {
  using Config = kernel::RowArgmaxConfig<kThreadsPerRow, kWidth>;
  host_cta::run_grid(ctas, Config::kThreads,
                     [&] { kernel::row_argmax<Config, epilogue::Gelu>(params, NoRepair{}); });
}

}  // namespace

extern "C" void row_argmax(float const* parts, int row_stride, int splits, int split_stride,
                           float const* bias, int rows, int columns, float scale, int ctas,
                           bool cta_a_row, bool vectors, float* values, int* winners,
                           float* slopes) {
  kernel::RowArgmaxParams const params{{parts, columns, row_stride, splits, split_stride, vectors},
                                       {bias, columns, vectors},
                                       rows,
                                       scale,
                                       values,
                                       winners,
                                       slopes};
  if (cta_a_row) {
    vectors ? run_argmax<256, 4>(params, ctas) : run_argmax<256, 1>(params, ctas);
  } else {
    vectors ? run_argmax<32, 4>(params, ctas) : run_argmax<32, 1>(params, ctas);
  }
}

extern "C" int slice_rows(int rows) { return RunConfig::slice_rows(rows); }

extern "C" int sums_of_runs(int rows) {
  int const slice_rows = RunConfig::slice_rows(rows);
  return int(ceil_div(rows, slice_rows)) * RunConfig::sums_of(slice_rows);
}

extern "C" void winner_gradients(float const* grad, int const* winners, float const* slopes,
                                 float const* x, float const* windows, int rows, int columns,
                                 int weight_rows, int kernel_size, int shares, int block_windows,
                                 bool vectors, float* sums, int* integers, float* floats,
                                 float* grad_x, float* weight, float* bias) {
  kernel::RunParams const runs{{integers, integers + rows, floats, floats + rows},
                               {x, columns, sums, columns},
                               0,
                               RunConfig::slice_rows(rows)};
  kernel::WinnerGradientParams const params{{grad, winners, slopes, rows},
                                            {windows, columns, grad_x, columns, 0},
                                            {},
                                            {weight, bias, weight_rows, kernel_size},
                                            0,
                                            false};
  if (vectors) {
    run<4>(runs, params, shares, block_windows);
  } else {
    run<1>(runs, params, shares, block_windows);
  }
}
