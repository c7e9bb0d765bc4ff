// Tensors to raw pointers: what a native op checks of its operands, so that no kernel reads or
// writes outside of them.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <climits>
#include <cstdint>
#include <optional>

#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/gemm/problem.h"
#include "stream.h"

namespace cutlass_ops {

using torch::stable::Tensor;

inline int extent(std::int64_t size) {
  // A tile, a chunk or a stride of 4096 that sticks out must not overflow its 32-bit index.
  STD_TORCH_CHECK(size >= 0 && size <= INT_MAX - 4096, "an extent of ", size,
                  " is beyond 2^31 - 4097");
  return static_cast<int>(size);
}

/// The operands of one call: float32 tensors of one CUDA device, which is current and whose current
/// stream is the call's while this object lives.
class Operands {
 public:
  explicit Operands(Tensor const& first)
      : device_(first.get_device_index()), guard_(device_), stream_(current_stream(device_)) {}

  cudaStream_t stream() const { return stream_; }

  float* data(Tensor const& tensor) const {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device_,
                    "all operands must be on CUDA device ", device_);
    STD_TORCH_CHECK(tensor.scalar_type() == torch::headeronly::ScalarType::Float,
                    "all operands must be float32");
    return static_cast<float*>(tensor.data_ptr());
  }

  /// Memory for `elements` numbers, one after another.
  float* dense(Tensor const& tensor, char const* name, std::int64_t elements) const {
    STD_TORCH_CHECK(tensor.numel() >= elements && tensor.is_contiguous(), name, " must hold ",
                    elements, " contiguous elements, it has ", tensor.numel());
    return data(tensor);
  }

  float const* bias(std::optional<Tensor> const& bias, std::int64_t columns) const {
    return bias ? dense(*bias, "bias", columns) : nullptr;
  }

 private:
  std::int32_t device_;
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

/// What a kernel reads: rows with unit stride, or those of the transpose of such a matrix, too.
enum class Layouts { kRows, kEither };

/// Elements between rows and columns. One of them is 1.
struct Layout {
  std::int64_t row_stride, column_stride;
};

/// A matrix of one row may carry any stride, and one without rows any strides.
inline Layout layout_of(Tensor const& matrix, Layouts layouts = Layouts::kRows) {
  STD_TORCH_CHECK(matrix.dim() == 2, "a matrix has 2 dimensions, not ", matrix.dim());
  if (matrix.size(0) == 0 || matrix.size(1) <= 1 || matrix.stride(1) == 1) {
    return {matrix.size(0) <= 1 ? matrix.size(1) : matrix.stride(0), 1};
  }
  bool const transposed = matrix.size(0) <= 1 || matrix.stride(0) == 1;
  STD_TORCH_CHECK(transposed && layouts == Layouts::kEither, "columns must be contiguous");
  return {1, matrix.stride(1)};
}

inline std::int64_t row_stride(Tensor const& matrix) { return layout_of(matrix).row_stride; }

inline gemm::Problem problem_of(Operands const& operands, Tensor const& x, Tensor const& weight,
                                Layouts layouts = Layouts::kRows) {
  Layout const of_x = layout_of(x, layouts);
  Layout const of_weight = layout_of(weight, layouts);
  STD_TORCH_CHECK(x.size(1) == weight.size(1), "x has ", x.size(1), " columns, weight ",
                  weight.size(1));
  return {operands.data(x),       operands.data(weight), extent(x.size(0)),
          extent(weight.size(0)), extent(x.size(1)),     of_x.row_stride,
          of_weight.row_stride,   of_x.column_stride,    of_weight.column_stride};
}

inline epilogue::MatrixSource matrix_of(Operands const& operands, Tensor const& z) {
  std::int64_t const stride = row_stride(z);
  return epilogue::MatrixSource::make(operands.data(z), extent(z.size(1)), stride);
}

}  // namespace cutlass_ops
