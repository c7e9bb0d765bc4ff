#include "winners.h"

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/row_argmax.h"
#include "cutlass_ops/kernel/winner_gradient.h"
#include "cutlass_ops/kernel/winner_rows.h"
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

template <class Activation, int kWidth>
Status choose_argmax(kernel::RowArgmaxParams const& params, cudaStream_t stream) {
  // A warp has some 32 columns a lane then.
  constexpr int kLongRow = 1024;
  return params.source.columns > kLongRow
             ? launch_argmax<kernel::RowArgmaxConfig<256, kWidth>, Activation>(params, stream)
             : launch_argmax<kernel::RowArgmaxConfig<32, kWidth>, Activation>(params, stream);
}

template <class Activation>
Status choose_argmax(kernel::RowArgmaxParams const& params, cudaStream_t stream) {
  bool const vectorized =
      params.source.vectorized && params.bias.vectorized && params.source.columns % 4 == 0;
  return vectorized ? choose_argmax<Activation, 4>(params, stream)
                    : choose_argmax<Activation, 1>(params, stream);
}

/// At least one: a weight without columns may have a bias all the same.
int column_tiles(int columns, int vector) {
  return std::max(1, int(ceil_div(columns, WinnerGradientConfig::kThreads * vector)));
}

/// The gradient of x, and what that of the weight is made of.
template <int kVector>
Status sum_and_gather(WinnerGradients const& call, kernel::RunParams const& runs,
                      cudaStream_t stream) {
  std::int64_t const rows = call.winners.rows;
  std::int64_t const run_ctas =
      call.sums() ? ceil_div(rows, runs.slice_rows) * runs.column_tiles : 0;
  kernel::GatherParams const gather{call.weight, call.weight_stride, call.grad_x, call.columns,
                                    column_tiles(call.columns, kVector)};
  std::int64_t const gather_ctas =
      call.grad_x != nullptr ? ceil_div(rows, kernel::GatherConfig::kRows) * gather.column_tiles
                             : 0;
  return launch_dependent<kernel::sum_and_gather<kVector>>(
      "sum_and_gather", run_ctas + gather_ctas, WinnerGradientConfig::kThreads, 0, stream,
      kernel::WinnerRowParams{call.winners, runs, gather, int(run_ctas)});
}

template <int kVector>
Status scatter(WinnerGradients const& call, kernel::RunParams const& runs, cudaStream_t stream) {
  kernel::SpreadTarget const& target = call.target;
  int const tiles = runs.column_tiles;
  std::int64_t const items = ceil_div(target.weight_rows, target.kernel_size) * tiles;
  constexpr std::int64_t kEnough = 512;  // CTAs, to write as fast as memory takes it
  std::int64_t const most = std::min<std::int64_t>(kEnough, target.kernel_size);
  int const shares =
      int(std::clamp<std::int64_t>(kEnough / std::max<std::int64_t>(items, 1), 1, most));
  return launch_dependent<kernel::scatter_terms<kVector>>(
      "scatter_terms", items * shares, kernel::ScatterConfig::kThreads, 0, stream,
      kernel::ScatterParams{runs.terms, runs.source, call.winners.rows, tiles, shares}, target);
}

template <int kVector>
Status run_gradients(WinnerGradients const& call, cudaStream_t stream) {
  std::int64_t const rows = call.winners.rows;
  int const columns = call.summed_columns();
  float* const terms = call.memory + GradientMemory(call.winners.rows, columns).terms;
  kernel::RunParams const runs{{reinterpret_cast<int*>(terms), reinterpret_cast<int*>(terms + rows),
                                terms + 2 * rows, terms + 3 * rows},
                               {call.x, call.x_stride, call.memory, columns},
                               column_tiles(columns, kVector),
                               kernel::RunConfig::slice_rows(call.winners.rows)};
  Status const status = sum_and_gather<kVector>(call, runs, stream);
  return status.ok() && call.sums() ? scatter<kVector>(call, runs, stream) : status;
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
