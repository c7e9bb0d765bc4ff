#include "cutlass_ops/kernel/fold_rows.h"

#include <algorithm>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/launch.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

using kernel::FoldRowsConfig;
/// Windows shorter than a batch of the next: more threads make up for fewer loads of each.
using ShortWindows = FoldRowsConfig<64, 1, 8, 16>;
/// 93.8 % of the bandwidth of a copy at k = 16 (H200); 92.6 with 10 CTAs an SM.
using LongBatches = FoldRowsConfig<64, 1, 16, 6>;
using LongWindows = FoldRowsConfig<32, 8, 8, 4>;

template <class Config, int kVector>
Status launch_fold(kernel::FoldRowsParams params, cudaStream_t stream) {
  constexpr int kColumns = Config::kLanes * kVector;
  // A weight without columns may have a bias all the same.
  params.column_tiles = std::max(1, int(ceil_div(params.columns, kColumns)));
  return launch("fold_rows", kernel::fold_rows<Config, kVector>,
                std::int64_t{params.windows} * params.column_tiles, Config::kThreads, stream,
                params);
}

template <int kVector>
Status choose_config(kernel::FoldRowsParams const& params, cudaStream_t stream) {
  constexpr int kLongWindow = 64;
  if (params.kernel_size >= kLongWindow) {
    return launch_fold<LongWindows, kVector>(params, stream);
  }
  return params.kernel_size >= LongBatches::kUnroll
             ? launch_fold<LongBatches, kVector>(params, stream)
             : launch_fold<ShortWindows, kVector>(params, stream);
}

}  // namespace

Status run_fold_rows(float const* weight, std::int64_t weight_stride, float const* bias, int rows,
                     int columns, int kernel_size, float* out, float* bias_out,
                     cudaStream_t stream) {
  kernel::FoldRowsParams const params{
      weight, weight_stride, out, bias, bias_out, rows / kernel_size, columns, kernel_size, 0};
  bool const vectorized = weight_stride % 4 == 0 && columns % 4 == 0 &&
                          epilogue::is_aligned(weight) && epilogue::is_aligned(out);
  return vectorized ? choose_config<4>(params, stream) : choose_config<1>(params, stream);
}

}  // namespace cutlass_ops
