// The native op of op A's backward, beside those of bindings.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "activation.h"
#include "descriptions.h"
#include "operands.h"
#include "row_gradient.h"

namespace cutlass_ops {
namespace {

/// `sums` holds one row for each group of threads, of the rows that they take.
void row_gradient(Tensor g, Tensor y, Tensor z, std::optional<Tensor> bias, std::string activation,
                  Tensor dz, std::optional<Tensor> sums) {
  Operands const operands(g);
  kernel::RowGradientParams params{};
  params.g = matrix_of(operands, g);
  params.y = matrix_of(operands, y);
  params.z = matrix_of(operands, z);
  params.rows = extent(g.size(0));
  params.columns = params.g.columns;
  STD_TORCH_CHECK(y.size(0) == params.rows && z.size(0) == params.rows &&
                      params.y.columns == params.columns && params.z.columns == params.columns,
                  "g, y and z must have one shape");
  epilogue::Arguments const arguments = arguments_of(operands.bias(bias, params.columns), {});
  epilogue::Reader reader(arguments);
  params.bias = epilogue::Bias::make(reader, params.columns);
  params.dz = operands.dense(dz, "dz", std::int64_t{params.rows} * params.columns);
  params.vectorized = params.columns % 4 == 0 && epilogue::is_aligned(params.dz);
  int groups = 0;
  if (sums) {
    STD_TORCH_CHECK(sums->dim() == 2 && sums->size(0) > 0, "sums must have rows");
    groups = extent(sums->size(0));
    params.sums = operands.dense(*sums, "sums", std::int64_t{groups} * params.columns);
    STD_TORCH_CHECK(epilogue::is_aligned(params.sums), "sums must be 16-byte aligned");
  }
  check(run_row_gradient(params, groups, activation_of(activation), operands.stream()));
}

std::int64_t row_gradient_groups_for(std::int64_t rows, std::int64_t columns) {
  return row_gradient_groups(extent(rows), extent(columns));
}

}  // namespace
}  // namespace cutlass_ops

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CUDA, library) {
  library.impl("_row_gradient", TORCH_BOX(&cutlass_ops::row_gradient));
}

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CompositeExplicitAutograd, library) {
  library.impl("_row_gradient_groups", TORCH_BOX(&cutlass_ops::row_gradient_groups_for));
}
