// Launchers of the kernels beside the GEMM.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {

enum class Activation { kIdentity, kGelu, kGeluTanh };

/// out[rows, source.columns] = softmax(activation(source + bias)) over each row; `out` may be the
/// source itself.
Status run_row_softmax(epilogue::MatrixSource const& source, int rows, float const* bias,
                       Activation activation, float* out, cudaStream_t stream);

/// The halves of `rows` means of `kernel_size` consecutive rows of a matrix, and beside them the
/// means of its bias; or the halves of a transposed matrix, whose rows are one element apart.
struct SplitTask {
  float const* source = nullptr;
  std::int64_t stride = 0;
  std::int64_t step = 1;  ///< from column to column
  int kernel_size = 1;
  int rows = 0;
  int columns = 0;
  float* memory = nullptr;  ///< that PairMemory lays out
  float const* bias = nullptr;
  float* bias_out = nullptr;
};

/// The halves of a weight, with the factors of its columns, and, unless it has no memory, of x.
Status run_split_weight(SplitTask const& weight, SplitTask const& x, cudaStream_t stream);

/// Those of x beside a weight that was split before.
Status run_split_x(SplitTask const& x, gemm::Fp16Pairs const& weight, cudaStream_t stream);

/// out[rows / kernel_size, columns] = means of `kernel_size` consecutive rows of weight[rows,
/// columns]; bias_out[rows / kernel_size] = those of bias[rows], unless it is nullptr.
Status run_fold_rows(float const* weight, std::int64_t weight_stride, float const* bias, int rows,
                     int columns, int kernel_size, float* out, float* bias_out,
                     cudaStream_t stream);

}  // namespace cutlass_ops
