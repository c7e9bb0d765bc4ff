#include "winners.h"

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/row_argmax.h"
#include "cutlass_ops/kernel/winner_gradient.h"
#include "cutlass_ops/kernel/winner_runs.h"
#include "winner_memory.h"

namespace cutlass_ops {
namespace {

using kernel::WinnerGradientConfig;

template <class Config, class Activation>
Status launch_argmax(kernel::RowArgmaxParams const& params, cudaStream_t stream) {
  return launch_dependent<kernel::row_argmax<Config, Activation>>(
      "row_argmax", grid_stride_ctas(params.rows, Config::kRows), Config::kThreads, 0, stream,
      params);
}

template <class Activation>
Status choose_argmax(kernel::RowArgmaxParams const& params, cudaStream_t stream) {
  // A warp has some 32 columns a lane then.
  constexpr int kLongRow = 1024;
  return params.columns > kLongRow
             ? launch_argmax<kernel::RowArgmaxConfig<256>, Activation>(params, stream)
             : launch_argmax<kernel::RowArgmaxConfig<32>, Activation>(params, stream);
}

/// At least one: a weight without columns may have a bias all the same.
int column_tiles(int columns, int vector) {
  return std::max(1, int(ceil_div(columns, WinnerGradientConfig::kThreads * vector)));
}

template <int kVector>
Status gather(kernel::GatherParams params, cudaStream_t stream) {
  params.column_tiles = column_tiles(params.columns, kVector);
  std::int64_t const items = std::int64_t{params.winners.rows} * params.column_tiles;
  return launch_dependent<kernel::gather_winners<kVector>>(
      "gather_winners", grid_stride_ctas(items, 1), WinnerGradientConfig::kThreads, 0, stream,
      params);
}

template <int kVector>
Status scatter(kernel::RunParams runs, kernel::SpreadTarget const& target, cudaStream_t stream) {
  constexpr int kThreads = WinnerGradientConfig::kThreads;
  int const rows = runs.winners.rows;
  int const tiles = column_tiles(runs.source.columns, kVector);
  runs.column_tiles = tiles;
  Status const status = launch_dependent<kernel::sum_runs<kVector>>(
      "sum_runs", ceil_div(rows, runs.slice_rows) * tiles, kThreads, 0, stream, runs);
  std::int64_t const items = ceil_div(target.weight_rows, target.kernel_size) * tiles;
  constexpr std::int64_t kEnough = 512;  // CTAs, to write as fast as memory takes it
  std::int64_t const most = std::min<std::int64_t>(kEnough, target.kernel_size);
  int const shares =
      int(std::clamp<std::int64_t>(kEnough / std::max<std::int64_t>(items, 1), 1, most));
  return status.ok()
             ? launch_dependent<kernel::scatter_terms<kVector>>(
                   "scatter_terms", items * shares, kThreads, 0, stream,
                   kernel::ScatterParams{runs.terms, runs.source, rows, tiles, shares}, target)
             : status;
}

bool aligned_rows(float const* matrix, std::int64_t stride) {
  return stride % 4 == 0 && epilogue::is_aligned(matrix);
}

}  // namespace

Status run_row_argmax(kernel::RowArgmaxParams const& params, Activation activation,
                      cudaStream_t stream) {
  return activation == Activation::kGelu ? choose_argmax<epilogue::Gelu>(params, stream)
                                         : choose_argmax<epilogue::GeluTanh>(params, stream);
}

Status run_gather_winners(kernel::GatherParams params, cudaStream_t stream) {
  bool const vectorized =
      aligned_rows(params.weight, params.weight_stride) && aligned_rows(params.out, params.columns);
  return vectorized ? gather<4>(params, stream) : gather<1>(params, stream);
}

Status run_scatter_winners(kernel::Winners const& winners, float const* x, std::int64_t x_stride,
                           int columns, kernel::SpreadTarget const& target, float* memory,
                           cudaStream_t stream) {
  GradientMemory const parts(winners.rows, columns);
  float* const terms = memory + parts.terms;
  std::int64_t const rows = winners.rows;
  kernel::RunParams const runs{winners,
                               {reinterpret_cast<int*>(terms), reinterpret_cast<int*>(terms + rows),
                                terms + 2 * rows, terms + 3 * rows},
                               {x, x_stride, memory, columns},
                               0,
                               kernel::RunConfig::slice_rows(winners.rows)};
  bool const vectorized = aligned_rows(x, x_stride) && aligned_rows(target.weight, columns);
  return vectorized ? scatter<4>(runs, target, stream) : scatter<1>(runs, target, stream);
}

}  // namespace cutlass_ops
