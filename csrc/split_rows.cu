#include "cutlass_ops/kernel/split_rows.h"

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/kernel/column_factors.h"
#include "cutlass_ops/kernel/split_columns.h"
#include "cutlass_ops/launch_cluster.h"
#include "pair_memory.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

kernel::SplitRowsParams params_of(SplitTask const& task, gemm::Fp16Pairs const& weight,
                                  bool divides) {
  float* const memory = task.memory;
  std::int64_t const stride = task.step == 1 ? task.stride : task.step;  // of the source
  return {task.source,
          stride,
          task.rows,
          task.columns,
          gemm::Fp16Pairs::pitch_of(task.columns),
          task.kernel_size,
          stride % 4 == 0 && epilogue::is_aligned(task.source),
          reinterpret_cast<__half*>(memory),
          scales_in(memory, task.rows, task.columns),
          task.bias,
          task.bias_out,
          weight.factors,
          weight.spread,
          divides};
}

struct SplitLaunch {
  kernel::SplitRowsParams first, second;
  bool ahead;
  cudaStream_t stream;
};

template <bool kFolds, int kThreads, int kColumns>
Status launch_split(SplitLaunch const& launch) {
  using First = kernel::SplitRowsConfig<kThreads, kColumns, kFolds>;
  using Second = kernel::SplitRowsConfig<kThreads, kColumns, false>;
  std::int64_t const ctas = ceil_div(launch.first.rows, First::kRowsPerCta) +
                            ceil_div(launch.second.rows, First::kRowsPerCta);
  return launch_dependent<kernel::split_rows<First, Second>>("split_rows", ctas, First::kCtaThreads,
                                                             0, launch.stream, launch.first,
                                                             launch.second, launch.ahead);
}

/// Few columns to a thread, of which there can be more: as much as possible is read at a time.
template <bool kFolds>
Status choose_config(SplitLaunch const& launch) {
  int const columns = launch.first.columns;
  if (columns <= 512) {
    return columns <= 256 ? launch_split<kFolds, 32, 8>(launch)
                          : launch_split<kFolds, 32, 16>(launch);
  }
  if (columns <= 4096) {
    // A mean of whole rows in one warp would wait for each row in turn.
    return columns <= 1024   ? launch_split<kFolds, kFolds ? 128 : 32, kFolds ? 8 : 32>(launch)
           : columns <= 2048 ? launch_split<kFolds, 256, kFolds ? 8 : 16>(launch)
                             : launch_split<kFolds, 256, 16>(launch);
  }
  return columns <= 8192 ? launch_split<kFolds, 256, 32>(launch)
                         : launch_split<kFolds, kFolds ? 512 : 1024, 32>(launch);
}

/// The halves of a transposed matrix.
Status launch_columns(kernel::SplitRowsParams const& params, cudaStream_t stream) {
  using Scales = kernel::ColumnScalesConfig;
  Status const status = launch_dependent_clusters(
      "column_scales", kernel::column_scales<Scales>, ceil_div(params.rows, Scales::kColumns),
      Scales::kCluster, Scales::kThreads, stream, params);
  using Config = kernel::SplitColumnsConfig;
  std::int64_t const row_tiles = ceil_div(params.pitch, Config::kTile);
  std::int64_t const tiles = row_tiles * ceil_div(params.rows, Config::kTile);
  return status.ok()
             ? launch_dependent<kernel::split_columns<Config>>(
                   "split_columns", tiles, Config::kThreads, 0, stream, params, int(row_tiles))
             : status;
}

/// One matrix, by itself.
Status split_one(SplitTask const& task, gemm::Fp16Pairs const& weight, bool divides,
                 cudaStream_t stream) {
  kernel::SplitRowsParams const params = params_of(task, weight, divides);
  if (task.step != 1) {
    return launch_columns(params, stream);
  }
  SplitLaunch const launch{params, {}, false, stream};
  return task.kernel_size > 1 ? choose_config<true>(launch) : choose_config<false>(launch);
}

Status make_factors(SplitTask const& weight, cudaStream_t stream) {
  PairMemory const parts(weight.rows, weight.columns);
  using Config = kernel::ColumnFactorsConfig;
  return launch_dependent_clusters(
      "column_factors", kernel::column_factors<Config>, 1, Config::kCluster, Config::kThreads,
      stream,
      kernel::ColumnFactorsParams{
          weight.source, weight.stride, weight.step, weight.rows * weight.kernel_size,
          weight.columns, gemm::Fp16Pairs::pitch_of(weight.columns), weight.memory + parts.factors,
          reinterpret_cast<int*>(weight.memory + parts.spread)});
}

}  // namespace

Status run_split_weight(SplitTask const& weight, SplitTask const& x, cudaStream_t stream) {
  Status const status = make_factors(weight, stream);
  if (!status.ok()) {
    return status;
  }
  gemm::Fp16Pairs const pairs = pairs_in(weight.memory, weight.rows, weight.columns);
  if (weight.step != 1 || x.step != 1) {
    Status const of_weight = split_one(weight, pairs, true, stream);
    return of_weight.ok() && x.memory != nullptr ? split_one(x, pairs, false, stream) : of_weight;
  }
  SplitLaunch const launch{params_of(weight, pairs, true), params_of(x, pairs, false), true,
                           stream};
  return weight.kernel_size > 1 ? choose_config<true>(launch) : choose_config<false>(launch);
}

Status run_split_x(SplitTask const& x, gemm::Fp16Pairs const& weight, cudaStream_t stream) {
  return split_one(x, weight, false, stream);
}

}  // namespace cutlass_ops
