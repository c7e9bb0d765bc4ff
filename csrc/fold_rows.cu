#include "cutlass_ops/kernel/fold_rows.h"

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/launch.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

template <class Config, int kVector>
Status launch_fold(kernel::FoldRowsParams params, cudaStream_t stream) {
  constexpr int kColumns = Config::kLanes * kVector;
  params.column_tiles = int(ceil_div(params.columns, kColumns));
  return launch("fold_rows", kernel::fold_rows<Config, kVector>,
                std::int64_t{params.windows} * params.column_tiles, Config::kThreads, stream,
                params);
}

template <int kVector>
Status choose_groups(kernel::FoldRowsParams const& params, cudaStream_t stream) {
  constexpr int kLongWindow = 64;
  return params.kernel_size < kLongWindow
             ? launch_fold<kernel::FoldRowsConfig<1>, kVector>(params, stream)
             : launch_fold<kernel::FoldRowsConfig<8>, kVector>(params, stream);
}

}  // namespace

Status run_fold_rows(float const* weight, std::int64_t weight_stride, int rows, int columns,
                     int kernel_size, float* out, cudaStream_t stream) {
  kernel::FoldRowsParams const params{weight,  weight_stride, out, rows / kernel_size,
                                      columns, kernel_size,   0};
  bool const vectorized = weight_stride % 4 == 0 && columns % 4 == 0 &&
                          epilogue::is_aligned(weight) && epilogue::is_aligned(out);
  return vectorized ? choose_groups<4>(params, stream) : choose_groups<1>(params, stream);
}

}  // namespace cutlass_ops
