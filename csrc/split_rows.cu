#include "cutlass_ops/kernel/split_rows.h"

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/kernel/clear_words.h"
#include "pair_memory.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

template <int kThreads, int kColumns, bool kFolds>
Status launch_split(kernel::SplitRowsParams const& params, cudaStream_t stream) {
  using Config = kernel::SplitRowsConfig<kThreads, kColumns, kFolds>;
  return launch_dependent<kernel::split_rows<Config>>("split_rows", params.rows, Config::kThreads,
                                                      0, stream, params);
}

template <bool kFolds>
Status choose_config(kernel::SplitRowsParams const& params, cudaStream_t stream) {
  if (params.columns <= 1024) {
    return launch_split<128, 8, kFolds>(params, stream);
  }
  return params.columns <= 8192 ? launch_split<256, 32, kFolds>(params, stream)
                                : launch_split<kFolds ? 512 : 1024, 32, kFolds>(params, stream);
}

}  // namespace

Status run_split_rows(float const* source, std::int64_t stride, int kernel_size, bool flags,
                      float* memory, int rows, int columns, cudaStream_t stream) {
  PairMemory const parts(rows, columns);
  int* const flag = reinterpret_cast<int*>(memory + parts.flag);
  if (flags) {
    constexpr int kThreads = 32;
    Status const status = launch_dependent<kernel::clear_words<kThreads>>(
        "split_rows: flag", 1, kThreads, 0, stream, flag, 1);
    if (!status.ok()) {
      return status;
    }
  }
  kernel::SplitRowsParams const params{source,
                                       stride,
                                       rows,
                                       columns,
                                       gemm::Fp16Pairs::pitch_of(columns),
                                       kernel_size,
                                       stride % 4 == 0 && epilogue::is_aligned(source),
                                       reinterpret_cast<__half*>(memory),
                                       reinterpret_cast<gemm::Fp16Scale*>(memory + parts.scales),
                                       flags ? flag : nullptr};
  return kernel_size > 1 ? choose_config<true>(params, stream)
                         : choose_config<false>(params, stream);
}

}  // namespace cutlass_ops
