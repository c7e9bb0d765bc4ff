#include "winners.h"

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/pooled_maximum.h"
#include "cutlass_ops/kernel/row_argmax.h"
#include "cutlass_ops/kernel/winner_gradient.h"
#include "cutlass_ops/kernel/winner_runs.h"
#include "repairs.h"
#include "winner_memory.h"

namespace cutlass_ops {
namespace {

using kernel::WinnerGradientConfig;

/// What repairs the maxima of a row, as op B has them.
template <class Activation>
using Repair = kernel::RefineNonfinite<typename epilogue::PooledMaximum<Activation>::Chain,
                                       typename epilogue::PooledMaximum<Activation>::Sink::Monoid>;

template <class Config, class Activation>
Status launch_argmax(kernel::RowArgmaxParams const& params, Repair<Activation> const& repair,
                     cudaStream_t stream) {
  static_assert(Config::kThreads == kernel::RefineNonfiniteConfig::kThreads, "as many threads");
  return launch_dependent<kernel::row_argmax<Config, Activation, Repair<Activation>>>(
      "row_argmax", grid_stride_ctas(params.rows, Config::kRows), Config::kThreads, 0, stream,
      params, repair);
}

template <class Activation, int kWidth>
Status choose_argmax(kernel::RowArgmaxParams const& params, Repair<Activation> const& repair,
                     cudaStream_t stream) {
  // A warp has some 32 columns a lane then.
  constexpr int kLongRow = 1024;
  using Long = kernel::RowArgmaxConfig<256, kWidth>;
  using Short = kernel::RowArgmaxConfig<32, kWidth>;
  return params.source.columns > kLongRow
             ? launch_argmax<Long, Activation>(params, repair, stream)
             : launch_argmax<Short, Activation>(params, repair, stream);
}

template <class Activation>
Status choose_argmax(kernel::RowArgmaxParams const& params, LinearCall const* unfolded,
                     cudaStream_t stream) {
  Repair<Activation> repair{};
  if (unfolded != nullptr) {
    repair = {refine_params<decltype(repair.params.chain)>(*unfolded), true};
  }
  bool const vectorized =
      params.source.vectorized && params.bias.vectorized && params.source.columns % 4 == 0;
  return vectorized ? choose_argmax<Activation, 4>(params, repair, stream)
                    : choose_argmax<Activation, 1>(params, repair, stream);
}

/// At least one: a weight without columns may have a bias all the same.
int column_tiles(int columns, int vector) {
  return std::max(1, int(ceil_div(columns, WinnerGradientConfig::kThreads * vector)));
}

template <int kVector>
Status sum_runs(kernel::Winners const& winners, kernel::RunParams const& runs,
                cudaStream_t stream) {
  return launch_dependent<kernel::sum_runs<kVector>>(
      "sum_runs", ceil_div(winners.rows, runs.slice_rows) * runs.column_tiles,
      WinnerGradientConfig::kThreads, 0, stream, winners, runs);
}

/// How many CTAs scatter, and how their work is laid out.
std::int64_t lay_out(kernel::SpreadTarget const& target, kernel::ScatterParams& params) {
  constexpr std::int64_t kEnough = 512;  // CTAs, to write as fast as memory takes it
  std::int64_t const windows = ceil_div(target.weight_rows, target.kernel_size);
  std::int64_t const block_windows =
      std::max<std::int64_t>(1, ceil_div(windows, kernel::ScatterConfig::Order::kBlocks));
  std::int64_t const items = ceil_div(windows, block_windows) * block_windows * params.column_tiles;
  std::int64_t const most = std::min<std::int64_t>(kEnough, target.kernel_size);
  params.block_windows = int(block_windows);
  params.shares =
      int(std::clamp<std::int64_t>(kEnough / std::max<std::int64_t>(items, 1), 1, most));
  return items * params.shares;
}

template <int kVector>
Status run_gradients(WinnerGradients const& call, cudaStream_t stream) {
  std::int64_t const rows = call.winners.rows;
  int const columns = call.summed_columns();
  kernel::GatherParams const gather{call.weight, call.weight_stride, call.grad_x, call.columns,
                                    column_tiles(call.columns, kVector)};
  std::int64_t const gather_ctas =
      call.grad_x != nullptr ? ceil_div(rows, kernel::GatherConfig::kRows) * gather.column_tiles
                             : 0;
  std::int64_t ctas = gather_ctas;
  kernel::WinnerGradientParams params{call.winners, gather,           {},
                                      call.target,  int(gather_ctas), call.sums() && rows > 0};
  if (call.sums()) {
    float* const terms = call.memory + GradientMemory(call.winners.rows, columns).terms;
    kernel::RunParams const runs{
        {reinterpret_cast<int*>(terms), reinterpret_cast<int*>(terms + rows), terms + 2 * rows,
         terms + 3 * rows},
        {call.x, call.x_stride, call.memory, columns},
        column_tiles(columns, kVector),
        kernel::RunConfig::slice_rows(call.winners.rows)};
    if (Status const status = sum_runs<kVector>(call.winners, runs, stream); !status.ok()) {
      return status;
    }
    params.scatter = {runs.terms, runs.source, runs.column_tiles, 1, 1};
    ctas += lay_out(call.target, params.scatter);
  }
  return launch_dependent<kernel::gather_and_scatter<kVector>>(
      "gather_and_scatter", ctas, WinnerGradientConfig::kThreads, 0, stream, params);
}

bool aligned_rows(float const* matrix, std::int64_t stride) {
  return stride % 4 == 0 && epilogue::is_aligned(matrix);
}

}  // namespace

Status run_row_argmax(kernel::RowArgmaxParams const& params, Activation activation,
                      LinearCall const* unfolded, cudaStream_t stream) {
  return activation == Activation::kGelu
             ? choose_argmax<epilogue::Gelu>(params, unfolded, stream)
             : choose_argmax<epilogue::GeluTanh>(params, unfolded, stream);
}

Status run_winner_gradients(WinnerGradients const& call, cudaStream_t stream) {
  // One choice for all operands: their rows are as long, and it is rare that one begins elsewhere.
  bool const vectorized =
      (call.grad_x == nullptr || (aligned_rows(call.weight, call.weight_stride) &&
                                  aligned_rows(call.grad_x, call.columns))) &&
      (call.target.weight == nullptr ||
       (aligned_rows(call.x, call.x_stride) && aligned_rows(call.target.weight, call.columns)));
  return vectorized ? run_gradients<4>(call, stream) : run_gradients<1>(call, stream);
}

}  // namespace cutlass_ops
