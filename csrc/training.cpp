// The native ops of training, beside those of bindings.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "activation.h"
#include "descriptions.h"
#include "linear_task.h"
#include "operands.h"
#include "product.h"
#include "stream_memory.h"
#include "winner_memory.h"
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

struct WinnerOutputs {
  Tensor values;
  Tensor winners;
  Tensor slopes;
};

/// Of h = source + bias; `unfolded`, if there is one, repairs the values.
void find_winners(Operands const& operands, epilogue::MatrixSource const& source,
                  epilogue::Arguments const& arguments, int rows, Activation activation,
                  double scale, WinnerOutputs const& out, LinearCall const* unfolded) {
  STD_TORCH_CHECK(source.columns > 0, "the maximum needs at least one column");
  epilogue::Reader reader(arguments);
  check(run_row_argmax({source, epilogue::Bias::make(reader, source.columns), rows, float(scale),
                        operands.dense(out.values, "values", rows),
                        indices(out.winners, "winners", rows, out.values),
                        operands.dense(out.slopes, "slopes", rows)},
                       activation, unfolded, operands.stream()));
}

void row_argmax(Tensor h, std::string activation, double scale, Tensor values, Tensor winners,
                Tensor slopes) {
  Operands const operands(h);
  find_winners(operands, matrix_of(operands, h), {}, extent(h.size(0)), activation_of(activation),
               scale, {values, winners, slopes}, nullptr);
}

std::int64_t winner_memory(std::int64_t rows, std::int64_t windows, std::int64_t workspace) {
  return WinnerMemory(extent(rows), extent(windows), workspace).elements;
}

/// Op B on the means of `kernel_size` rows of the weight, which go to `folded` unless they are the
/// rows themselves: the forward of a training step in one crossing from Python. Infinities that
/// folding spoils are repaired.
void linear_winners(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t kernel_size,
                    std::string activation, double scale, std::int64_t kernel, std::int64_t splits,
                    Tensor memory, std::optional<Tensor> folded, Tensor values, Tensor winners,
                    Tensor slopes) {
  Operands const operands(x);
  std::vector<double> const params{double(kernel_size), scale};
  std::vector<double> const none;
  LinearTask task(operands, x, weight, bias, "identity", none);
  gemm::Problem& problem = task.call.problem;
  int const weight_rows = problem.n;
  STD_TORCH_CHECK(kernel_size >= 1 && kernel_size <= weight_rows, "a window of ", kernel_size,
                  " rows does not fit ", weight_rows);
  problem.n = int(weight_rows / kernel_size);
  STD_TORCH_CHECK(folded.has_value() == (kernel_size > 1), "means of one row are the row");
  // Op B on the weight as it is, for the repair: before anything is folded or split.
  LinearCall whole = task.call;
  whole.problem.n = weight_rows;
  whole.arguments = arguments_of(task.call.arguments.bias, params);
  whole.out = operands.dense(values, "values", problem.m);
  task.call.plan = plan_of({kernel, splits}, task.shape, problem, false);
  WinnerMemory const parts(problem.m, problem.n, task.call.plan.workspace);
  float* const first = operands.dense(memory, "memory", parts.elements);
  STD_TORCH_CHECK(epilogue::is_aligned(first), "memory must be 16-byte aligned");
  if (folded) {
    float* const means = operands.dense(*folded, "folded", std::int64_t{problem.n} * problem.k);
    float const* const source_bias = task.call.arguments.bias;
    float* const means_bias = source_bias == nullptr ? nullptr : first + parts.bias;
    check(run_fold_rows(problem.weight, problem.weight_stride, source_bias, weight_rows, problem.k,
                        int(kernel_size), means, means_bias, operands.stream()));
    problem.weight = means;
    problem.weight_stride = problem.k;
    task.call.arguments = arguments_of(means_bias, none);
  }
  task.call.workspace = first + parts.workspace;
  task.call.out = first;
  check(make_pairs(task.call));
  WinnerOutputs const outputs{values, winners, slopes};
  LinearCall const* const unfolded = folded ? &whole : nullptr;
  if (task.call.plan.direct || takes_halves(task.call.plan.kernel)) {
    check(run_linear(task.epilogue, task.call));
    check(repair_linear(task.epilogue, task.call));
    find_winners(operands, epilogue::MatrixSource::make(first, problem.n, problem.n), {}, problem.m,
                 activation_of(activation), scale, outputs, unfolded);
  } else {  // h is not repaired, and need not be written
    check(run_partial_gemm(task.call, task.call.workspace));
    find_winners(operands, partial_matrices(task.call), task.call.arguments, problem.m,
                 activation_of(activation), scale, outputs, unfolded);
  }
}

std::int64_t winner_gradient_memory(std::int64_t rows, std::int64_t columns) {
  return GradientMemory(extent(rows), extent(columns)).elements;
}

/// Of y = max over j of f(x weight[j] + bias[j]), where weight holds the means of `kernel_size`
/// rows each of another one: the gradients of x and of that weight and its bias, as far as there is
/// memory for them.
void winner_gradients(Tensor grad, Tensor winners, Tensor slopes, Tensor x, Tensor weight,
                      std::int64_t kernel_size, Tensor memory, std::optional<Tensor> grad_x,
                      std::optional<Tensor> grad_weight, std::optional<Tensor> grad_bias) {
  Operands const operands(x);
  gemm::Problem const problem = problem_of(operands, x, weight);
  int const rows = problem.m;
  int const columns = problem.k;
  WinnerGradients call{};
  call.winners = {operands.dense(grad, "grad", rows), indices(winners, "winners", rows, x),
                  operands.dense(slopes, "slopes", rows), rows};
  call.x = problem.x;
  call.x_stride = problem.x_stride;
  call.weight = problem.weight;
  call.weight_stride = problem.weight_stride;
  call.columns = columns;
  if (grad_x) {
    call.grad_x = operands.dense(*grad_x, "grad_x", std::int64_t{rows} * columns);
  }
  if (grad_weight || grad_bias) {
    int const weight_rows = extent(grad_weight ? grad_weight->size(0) : grad_bias->size(0));
    STD_TORCH_CHECK(kernel_size >= 1 && weight_rows / kernel_size == problem.n, problem.n,
                    " windows of ", kernel_size, " rows are not those of ", weight_rows);
    call.target = {grad_weight ? operands.dense(*grad_weight, "grad_weight",
                                                std::int64_t{weight_rows} * columns)
                               : nullptr,
                   grad_bias ? operands.dense(*grad_bias, "grad_bias", weight_rows) : nullptr,
                   weight_rows, int(kernel_size)};
    call.memory =
        operands.dense(memory, "memory", GradientMemory(rows, call.summed_columns()).elements);
    STD_TORCH_CHECK(epilogue::is_aligned(call.memory), "memory must be 16-byte aligned");
  }
  check(run_winner_gradients(call, operands.stream()));
}

ProductCall product_of(Operands const& operands, Tensor const& a, bool a_transposed,
                       Tensor const& b) {
  int const k = extent(a_transposed ? a.size(0) : a.size(1));
  STD_TORCH_CHECK(b.size(0) == k, "a has ", k, " of what b has ", b.size(0));
  ProductCall call{};
  call.a = operands.data(a);
  call.a_stride = row_stride(a);
  call.a_transposed = a_transposed;
  call.b = operands.data(b);
  call.b_stride = row_stride(b);
  call.m = extent(a_transposed ? a.size(1) : a.size(0));
  call.n = extent(b.size(1));
  call.k = k;
  call.ctas = multiprocessors();
  call.stream = operands.stream();
  return call;
}

/// Elements of memory for the product, or 0 where the kernels do not take it.
std::int64_t product_memory(Tensor a, bool a_transposed, Tensor b) {
  Operands const operands(a);
  ProductCall const call = product_of(operands, a, a_transposed, b);
  return call.runs() ? stream_exchange_elements(kKernels[kStreamK128x128], call.ctas) : 0;
}

void product(Tensor a, bool a_transposed, Tensor b, Tensor memory, Tensor out) {
  Operands const operands(a);
  ProductCall call = product_of(operands, a, a_transposed, b);
  call.exchange = operands.dense(memory, "memory",
                                 stream_exchange_elements(kKernels[kStreamK128x128], call.ctas));
  STD_TORCH_CHECK(epilogue::is_aligned(call.exchange), "memory must be 16-byte aligned");
  call.out = operands.dense(out, "out", std::int64_t{call.m} * call.n);
  check(run_product(call));
}

}  // namespace
}  // namespace cutlass_ops

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CUDA, library) {
  library.impl("_row_argmax", TORCH_BOX(&cutlass_ops::row_argmax));
  library.impl("_linear_winners", TORCH_BOX(&cutlass_ops::linear_winners));
  library.impl("_winner_gradients", TORCH_BOX(&cutlass_ops::winner_gradients));
  library.impl("_product_memory", TORCH_BOX(&cutlass_ops::product_memory));
  library.impl("_product", TORCH_BOX(&cutlass_ops::product));
}

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CompositeExplicitAutograd, library) {
  library.impl("_winner_memory", TORCH_BOX(&cutlass_ops::winner_memory));
  library.impl("_winner_gradient_memory", TORCH_BOX(&cutlass_ops::winner_gradient_memory));
}
