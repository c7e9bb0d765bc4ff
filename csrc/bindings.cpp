// The native ops, on the LibTorch stable ABI: with gradients.cpp, queries.cpp and what checks their
// operands, the only code that sees torch. Schemas are defined in Python (cutlass_ops/schemas.py),
// where the messages for users are made.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "activation.h"
#include "descriptions.h"
#include "folded_memory.h"
#include "linear.h"
#include "linear_task.h"
#include "matrix_slots.h"
#include "operands.h"
#include "pair_memory.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

void linear_epilogue(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, std::int64_t kernel, std::int64_t splits,
                     Tensor workspace, Tensor out, std::optional<Tensor> pairs) {
  Operands const operands(x);
  LinearTask task(operands, x, weight, bias, name, params, Layouts::kEither);
  STD_TORCH_CHECK(kernel_of(kernel) == kFp16x3 || !task.call.problem.transposed(),
                  "only kernels on halves that are made before take transposed operands");
  task.set_plan(operands, {kernel, splits}, workspace, pairs);
  task.call.out = task.output(operands, out);
  check(make_pairs(task.call));
  check(run_linear(task.epilogue, task.call));
  check(repair_linear(task.epilogue, task.call));
}

void matrix_epilogue(Tensor z, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, Tensor workspace, Tensor out) {
  Operands const operands(z);
  Epilogue const& epilogue = epilogue_of(name);
  MatrixCall call{};
  call.source = matrix_of(operands, z);
  call.rows = extent(z.size(0));
  int const columns = call.source.columns;
  EpilogueShape const shape = shape_of(epilogue, params, columns);
  call.arguments = arguments_of(operands.bias(bias, columns), params);
  call.workspace = operands.dense(
      workspace, "workspace",
      matrix_workspace(call.rows, columns / shape.window, shape.fragment_width, shape.reduces));
  call.out = operands.dense(out, "out", output_elements(shape, call.rows, columns));
  call.stream = operands.stream();
  check(epilogue.run_matrix(call));
}

void run_softmax(Operands const& operands, epilogue::MatrixSource const& source, int rows,
                 std::optional<Tensor> const& bias, std::string const& activation,
                 Tensor const& out) {
  check(run_row_softmax(
      source, rows, operands.bias(bias, source.columns), activation_of(activation),
      operands.dense(out, "out", std::int64_t{rows} * source.columns), operands.stream()));
}

void row_softmax(Tensor z, std::optional<Tensor> bias, std::string activation, Tensor out) {
  Operands const operands(z);
  run_softmax(operands, matrix_of(operands, z), extent(z.size(0)), bias, activation, out);
}

/// Op A in one crossing from Python, which costs the host microseconds each time. Where `z` is
/// wanted, the GEMM leaves it there. Otherwise its accumulators go to memory as they are, and the
/// softmax, which waits for memory, adds splits and bias: where halves leave NaN in place of an
/// infinity, the row becomes NaN all the same.
void linear_softmax(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t kernel,
                    std::int64_t splits, Tensor workspace, std::string activation,
                    std::optional<Tensor> z, Tensor out, std::optional<Tensor> pairs) {
  Operands const operands(x);
  LinearTask task(operands, x, weight, bias, "identity", {});
  task.set_plan(operands, {kernel, splits}, workspace, pairs);
  LinearCall& call = task.call;
  check(make_pairs(call));
  int const rows = call.problem.m;
  int const columns = call.problem.n;
  if (z) {
    call.out = task.output(operands, *z);
    check(run_linear(task.epilogue, call));
    check(repair_linear(task.epilogue, call));
    run_softmax(operands, epilogue::MatrixSource::make(call.out, columns, columns), rows,
                std::nullopt, activation, out);
    return;
  }
  float* const partials = call.plan.direct ? task.output(operands, out) : call.workspace;
  check(run_partial_gemm(call, partials));
  run_softmax(operands,
              epilogue::MatrixSource::make(partials, columns, columns, call.plan.splits,
                                           std::int64_t{rows} * columns),
              rows, bias, activation, out);
}

void split_rows(Tensor weight, std::int64_t kernel_size, Tensor pairs) {
  Operands const operands(weight);
  Layout const layout = layout_of(weight, Layouts::kEither);
  int const columns = extent(weight.size(1));
  STD_TORCH_CHECK(kernel_size >= 1 && kernel_size <= extent(weight.size(0)), "a window of ",
                  kernel_size, " rows does not fit ", weight.size(0));
  STD_TORCH_CHECK(kernel_size == 1 || layout.column_stride == 1, "means are of dense rows");
  int const rows = int(weight.size(0) / kernel_size);
  float* const memory = operands.dense(pairs, "pairs", PairMemory(rows, columns).elements);
  STD_TORCH_CHECK(epilogue::is_aligned(memory), "pairs must be 16-byte aligned");
  SplitTask const task{operands.data(weight),
                       layout.row_stride,
                       layout.column_stride,
                       int(kernel_size),
                       rows,
                       columns,
                       memory,
                       nullptr,
                       nullptr};
  check(run_split_weight(task, {}, operands.stream()));
}

void fold_rows(Tensor weight, std::optional<Tensor> bias, std::int64_t kernel_size, Tensor out,
               std::optional<Tensor> bias_out) {
  Operands const operands(weight);
  std::int64_t const stride = row_stride(weight);
  int const rows = extent(weight.size(0));
  int const columns = extent(weight.size(1));
  STD_TORCH_CHECK(kernel_size >= 1 && kernel_size <= rows, "a window of ", kernel_size,
                  " rows does not fit ", rows);
  STD_TORCH_CHECK(bias.has_value() == bias_out.has_value(), "bias and bias_out come together");
  std::int64_t const windows = rows / kernel_size;
  check(run_fold_rows(operands.data(weight), stride, operands.bias(bias, rows), rows, columns,
                      static_cast<int>(kernel_size), operands.dense(out, "out", windows * columns),
                      bias_out ? operands.dense(*bias_out, "bias_out", windows) : nullptr,
                      operands.stream()));
}

/// A description whose windows are means of columns, on a weight that is folded first: one crossing
/// from Python. Rows that come out infinite are computed again, unfolded.
void folded_epilogue(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, std::int64_t kernel, std::int64_t splits,
                     Tensor memory, Tensor out) {
  Operands const operands(x);
  LinearTask whole(operands, x, weight, bias, name, params);
  gemm::Problem const& problem = whole.call.problem;
  int const window = whole.shape.window;
  STD_TORCH_CHECK(!params.empty() && params[0] == window && window <= problem.n,
                  "the first number of '", name, "' must be its window, of up to ", problem.n);
  STD_TORCH_CHECK(whole.shape.reduces, "'", name, "' must reduce its rows");
  whole.call.out = whole.output(operands, out);

  LinearCall call = whole.call;
  std::vector<double> unpooled = params;
  unpooled[0] = 1.0;
  call.problem.n = problem.n / window;
  call.problem.weight_stride = problem.k;
  call.plan = plan_of({kernel, splits}, shape_of(whole.epilogue, unpooled, call.problem.n),
                      call.problem, false);
  FoldedMemory const parts(call.problem.n, problem.k, call.plan.kernel, call.plan.workspace);
  float* const means = operands.dense(memory, "memory", parts.elements);
  STD_TORCH_CHECK(epilogue::is_aligned(means), "memory must be 16-byte aligned");
  float* const means_bias = bias ? means + parts.bias : nullptr;
  call.problem.weight = means;
  call.arguments = arguments_of(means_bias, unpooled);
  call.workspace = means + parts.workspace;

  if (takes_halves(call.plan.kernel)) {
    check(make_pairs(call, {problem.weight, problem.weight_stride, 1, window, call.problem.n,
                            problem.k, nullptr, whole.call.arguments.bias, means_bias}));
    whole.call.plan = call.plan;
    whole.call.x_scales = call.x_scales;
    whole.call.weight_pairs = call.weight_pairs;
    whole.call.column_flags = call.column_flags;
  } else {
    check(run_fold_rows(problem.weight, problem.weight_stride, whole.call.arguments.bias, problem.n,
                        problem.k, window, means, means_bias, call.stream));
  }
  check(run_linear(whole.epilogue, call));
  check(whole.epilogue.refine(whole.call));
}

/// The repair alone.
void refine_nonfinite(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                      std::vector<double> params, Tensor out) {
  Operands const operands(x);
  LinearTask task(operands, x, weight, bias, name, params);
  task.call.out = task.output(operands, out);
  check(task.epilogue.refine(task.call));
}

}  // namespace
}  // namespace cutlass_ops

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CUDA, library) {
  library.impl("_linear_epilogue", TORCH_BOX(&cutlass_ops::linear_epilogue));
  library.impl("_linear_softmax", TORCH_BOX(&cutlass_ops::linear_softmax));
  library.impl("_matrix_epilogue", TORCH_BOX(&cutlass_ops::matrix_epilogue));
  library.impl("_refine_nonfinite", TORCH_BOX(&cutlass_ops::refine_nonfinite));
  library.impl("_folded_epilogue", TORCH_BOX(&cutlass_ops::folded_epilogue));
  library.impl("_row_softmax", TORCH_BOX(&cutlass_ops::row_softmax));
  library.impl("_fold_rows", TORCH_BOX(&cutlass_ops::fold_rows));
  library.impl("_split_rows", TORCH_BOX(&cutlass_ops::split_rows));
}
