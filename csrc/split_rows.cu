#include "cutlass_ops/kernel/split_rows.h"

#include <algorithm>

#include "cutlass_ops/epilogue/arguments.h"
#include "pair_memory.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

kernel::SplitRowsParams params_of(SplitTask const& task) {
  float* const memory = task.memory;
  PairMemory const parts(task.rows, task.columns);
  return {task.source,
          task.stride,
          task.rows,
          task.columns,
          gemm::Fp16Pairs::pitch_of(task.columns),
          task.kernel_size,
          task.stride % 4 == 0 && epilogue::is_aligned(task.source),
          reinterpret_cast<__half*>(memory),
          reinterpret_cast<gemm::Fp16Scale*>(memory + parts.scales),
          task.bias,
          task.bias_out};
}

template <int kThreads, int kColumns, bool kFolds>
Status launch_split(SplitTask const& first, SplitTask const& second, cudaStream_t stream) {
  using First = kernel::SplitRowsConfig<kThreads, kColumns, kFolds>;
  using Second = kernel::SplitRowsConfig<kThreads, kColumns, false>;
  return launch_dependent<kernel::split_rows<First, Second>>(
      "split_rows", std::int64_t{first.rows} + second.rows, kThreads, 0, stream, params_of(first),
      params_of(second));
}

template <bool kFolds>
Status choose_config(SplitTask const& first, SplitTask const& second, cudaStream_t stream) {
  int const columns = std::max(first.columns, second.columns);
  if (columns <= 1024) {
    return launch_split<128, 8, kFolds>(first, second, stream);
  }
  return columns <= 8192 ? launch_split<256, 32, kFolds>(first, second, stream)
                         : launch_split<kFolds ? 512 : 1024, 32, kFolds>(first, second, stream);
}

}  // namespace

Status run_split_rows(SplitTask const& first, SplitTask const& second, cudaStream_t stream) {
  return first.kernel_size > 1 ? choose_config<true>(first, second, stream)
                               : choose_config<false>(first, second, stream);
}

}  // namespace cutlass_ops
