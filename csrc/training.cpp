// The native ops of training, beside those of bindings.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "activation.h"
#include "descriptions.h"
#include "operands.h"
#include "winners.h"

namespace cutlass_ops {
namespace {

int* indices(Tensor const& tensor, char const* name, std::int64_t elements, Tensor const& beside) {
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == beside.get_device_index() &&
                      tensor.scalar_type() == torch::headeronly::ScalarType::Int &&
                      tensor.is_contiguous() && tensor.numel() >= elements,
                  name, " must hold ", elements, " contiguous int32 numbers beside the operands");
  return static_cast<int*>(tensor.data_ptr());
}

void row_argmax(Tensor h, std::string activation, double scale, Tensor values, Tensor winners,
                Tensor slopes) {
  Operands const operands(h);
  int const rows = extent(h.size(0));
  int const columns = extent(h.size(1));
  STD_TORCH_CHECK(columns > 0, "the maximum needs at least one column");
  check(
      run_row_argmax({operands.data(h), row_stride(h), rows, columns, float(scale),
                      operands.dense(values, "values", rows), indices(winners, "winners", rows, h),
                      operands.dense(slopes, "slopes", rows)},
                     activation_of(activation), operands.stream()));
}

/// Of y = max over j of f(x weight[j] + bias[j]), where weight holds the means of `kernel_size`
/// rows each of another one: the gradients of x and of that weight and its bias, as far as there is
/// memory for them. Several slices where `partials` has room for them.
void winner_gradients(Tensor grad, Tensor winners, Tensor slopes, Tensor x, Tensor weight,
                      std::int64_t kernel_size, std::int64_t slices, Tensor partials,
                      std::optional<Tensor> grad_x, std::optional<Tensor> grad_weight,
                      std::optional<Tensor> grad_bias) {
  Operands const operands(x);
  gemm::Problem const problem = problem_of(operands, x, weight);
  int const rows = problem.m;
  int const columns = problem.k;
  kernel::Winners const source{operands.dense(grad, "grad", rows),
                               indices(winners, "winners", rows, x),
                               operands.dense(slopes, "slopes", rows), rows};
  if (grad_x) {
    check(run_gather_winners(
        {source, problem.weight, problem.weight_stride,
         operands.dense(*grad_x, "grad_x", std::int64_t{rows} * columns), columns, 0},
        operands.stream()));
  }
  if (!grad_weight && !grad_bias) {
    return;
  }
  STD_TORCH_CHECK(kernel_size >= 1 && slices >= 1, "kernel_size and slices must be positive");
  int const weight_rows = extent(grad_weight ? grad_weight->size(0) : grad_bias->size(0));
  STD_TORCH_CHECK(weight_rows / kernel_size == problem.n, problem.n, " windows of ", kernel_size,
                  " rows are not those of ", weight_rows);
  kernel::SpreadTarget const target{
      grad_weight ? operands.dense(*grad_weight, "grad_weight", std::int64_t{weight_rows} * columns)
                  : nullptr,
      grad_bias ? operands.dense(*grad_bias, "grad_bias", weight_rows) : nullptr, weight_rows,
      int(kernel_size)};
  int const summed = grad_weight ? columns : 0;  // for the bias alone x is not read
  check(run_scatter_winners(
      {source, problem.x, problem.x_stride, summed, 0, problem.n, extent(slices), 0}, target,
      slices > 1
          ? operands.dense(partials, "partials", slices * problem.n * (std::int64_t{summed} + 1))
          : nullptr,
      operands.stream()));
}

}  // namespace
}  // namespace cutlass_ops

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CUDA, library) {
  library.impl("_row_argmax", TORCH_BOX(&cutlass_ops::row_argmax));
  library.impl("_winner_gradients", TORCH_BOX(&cutlass_ops::winner_gradients));
}
