#include "winners.h"

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/row_argmax.h"
#include "cutlass_ops/kernel/winner_gradient.h"

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
Status scatter(kernel::ScatterParams params, kernel::SpreadTarget const& target, float* partials,
               cudaStream_t stream) {
  constexpr int kThreads = WinnerGradientConfig::kThreads;
  params.column_tiles = column_tiles(params.columns, kVector);
  std::int64_t const windows = ceil_div(target.weight_rows, target.kernel_size);
  std::int64_t const tiles = windows * params.column_tiles;
  if (params.slices == 1) {
    return launch_dependent<kernel::scatter_winners<kVector>>("scatter_winners", tiles, kThreads, 0,
                                                              stream, params, target, nullptr);
  }
  Status const status = launch_dependent<kernel::scatter_winners<kVector>>(
      "scatter_winners", tiles * params.slices, kThreads, 0, stream, params, target, partials);
  return status.ok() ? launch_dependent<kernel::spread_partials<kVector>>(
                           "spread_partials", tiles, kThreads, 0, stream, params, target, partials)
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

Status run_scatter_winners(kernel::ScatterParams params, kernel::SpreadTarget const& target,
                           float* partials, cudaStream_t stream) {
  params.slice_rows = int(ceil_div(params.winners.rows, params.slices));
  bool const vectorized =
      aligned_rows(params.x, params.x_stride) && aligned_rows(target.weight, params.columns);
  return vectorized ? scatter<4>(params, target, partials, stream)
                    : scatter<1>(params, target, partials, stream);
}

}  // namespace cutlass_ops
