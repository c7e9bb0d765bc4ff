// The native ops and queries, on the LibTorch stable ABI: with operands.h, the only code that sees
// torch. Schemas are defined in Python (cutlass_ops/schemas.py), where the messages for users are
// made.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "build_info.h"
#include "kernel_table.h"
#include "linear.h"
#include "matrix_slots.h"
#include "operands.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

void check(Status const& status) {
  STD_TORCH_CHECK(status.ok(), status.what, ": ", cudaGetErrorString(status.error));
}

Epilogue const& epilogue_of(std::string const& name) {
  Epilogue const* const epilogue = find_epilogue(name);
  STD_TORCH_CHECK(epilogue != nullptr, "no epilogue named '", name,
                  "' is registered, or more than one is");
  return *epilogue;
}

epilogue::Arguments arguments_of(float const* bias, std::vector<double> const& params) {
  return {bias, params.data(), static_cast<int>(params.size())};
}

/// The description's facts for a linear of `columns` columns; the numbers must be those that it
/// takes.
EpilogueShape shape_of(Epilogue const& epilogue, std::vector<double> const& params, int columns) {
  EpilogueShape const shape = epilogue.shape(arguments_of(nullptr, params), columns);
  STD_TORCH_CHECK(shape.param_count == static_cast<int>(params.size()), "epilogue '", epilogue.name,
                  "' takes ", shape.param_count, " params, not ", params.size());
  STD_TORCH_CHECK(shape.window >= 1, "epilogue '", epilogue.name, "' has a window of ",
                  shape.window, " columns");
  return shape;
}

std::int64_t output_elements(EpilogueShape const& shape, std::int64_t rows, std::int64_t columns) {
  return shape.reduces ? rows : rows * (columns / shape.window);
}

int kernel_of(std::vector<std::int64_t> const& plan) {
  STD_TORCH_CHECK(plan.size() == 5 && plan[0] >= 0 && plan[0] < kKernelCount, "not a plan");
  return static_cast<int>(plan[0]);
}

std::vector<std::int64_t> list_of(Plan const& plan) {
  return {plan.kernel, plan.splits, plan.workspace, plan.nanoseconds, plan.direct ? 1 : 0};
}

Gpu gpu_of(std::vector<std::int64_t> const& gpu) {
  constexpr std::int64_t kMost = 1 << 16;  // so that no product of it overflows
  STD_TORCH_CHECK(gpu.size() == 2 && gpu[0] >= 1 && gpu[0] <= kMost,
                  "a GPU is its number of multiprocessors, 1 to 65536, and 10 * major + minor");
  return {extent(gpu[0]), extent(gpu[1])};
}

PlanRequest request_of(EpilogueShape const& shape, std::int64_t m, std::int64_t n, std::int64_t k,
                       Gpu gpu, std::int64_t folded) {
  STD_TORCH_CHECK(folded >= 1, "folded must be positive, got ", folded);
  return {extent(m), extent(n),     extent(k), shape.window, shape.reduces, shape.fragment_width,
          gpu,       extent(folded)};
}

/// Of the current device.
int multiprocessors() {
  int device = 0;
  int count = 0;
  check({cudaGetDevice(&device), "cudaGetDevice"});
  check(
      {cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors"});
  return count;
}

/// What a plan's choice of kernel and splits means for these sizes. What else the list says is not
/// believed: it may have been made for others.
Plan plan_of(std::vector<std::int64_t> const& list, EpilogueShape const& shape,
             gemm::Problem const& problem) {
  int const kernel = kernel_of(list);
  // Stream-K alone asks for the GPU.
  Gpu const gpu{kernel == kStreamK128x128 ? multiprocessors() : 1, 0};
  std::optional<Plan> const plan = make_plan(
      request_of(shape, problem.m, problem.n, problem.k, gpu, 1), kernel, extent(list[1]));
  STD_TORCH_CHECK(plan.has_value(), "this plan cannot run ", problem.m, " x ", problem.n, " x ",
                  problem.k);
  return *plan;
}

/// A linear layer with the epilogue `name`: what does not depend on how it runs.
struct LinearTask {
  Epilogue const& epilogue;
  LinearCall call{};
  EpilogueShape shape;

  LinearTask(Operands const& operands, Tensor const& x, Tensor const& weight,
             std::optional<Tensor> const& bias, std::string const& name,
             std::vector<double> const& params)
      : epilogue(epilogue_of(name)) {
    call.problem = problem_of(operands, x, weight);
    shape = shape_of(epilogue, params, call.problem.n);
    call.arguments = arguments_of(operands.bias(bias, call.problem.n), params);
    call.stream = operands.stream();
  }

  void set_plan(Operands const& operands, std::vector<std::int64_t> const& plan,
                Tensor const& workspace) {
    call.plan = plan_of(plan, shape, call.problem);
    call.workspace = operands.dense(workspace, "workspace", call.plan.workspace);
    STD_TORCH_CHECK(call.plan.ctas == 0 || epilogue::is_aligned(call.workspace),
                    "workspace must be 16-byte aligned");
  }

  float* output(Operands const& operands, Tensor const& out) const {
    return operands.dense(out, "out", output_elements(shape, call.problem.m, call.problem.n));
  }
};

void linear_epilogue(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, std::vector<std::int64_t> plan, Tensor workspace,
                     Tensor out) {
  Operands const operands(x);
  LinearTask task(operands, x, weight, bias, name, params);
  task.set_plan(operands, plan, workspace);
  task.call.out = task.output(operands, out);
  check(run_linear(task.epilogue, task.call));
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

Activation activation_of(std::string const& name) {
  if (name == "identity") {
    return Activation::kIdentity;
  }
  if (name == "gelu") {
    return Activation::kGelu;
  }
  STD_TORCH_CHECK(name == "gelu_tanh", "no activation named '", name, "'");
  return Activation::kGeluTanh;
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
/// softmax, which waits for memory, adds splits and bias.
void linear_softmax(Tensor x, Tensor weight, std::optional<Tensor> bias,
                    std::vector<std::int64_t> plan, Tensor workspace, std::string activation,
                    std::optional<Tensor> z, Tensor out) {
  Operands const operands(x);
  LinearTask task(operands, x, weight, bias, "identity", {});
  task.set_plan(operands, plan, workspace);
  LinearCall& call = task.call;
  int const rows = call.problem.m;
  int const columns = call.problem.n;
  if (z) {
    call.out = task.output(operands, *z);
    check(run_linear(task.epilogue, call));
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

/// Memory of a call that folds: the means of W and of the bias, then the workspace.
struct FoldedMemory {
  std::int64_t bias, workspace, elements;  ///< where they begin, each 16-byte aligned; and the end

  FoldedMemory(std::int64_t windows, std::int64_t k, std::int64_t workspace_elements)
      : bias(ceil_div(windows * k, 4) * 4),
        workspace(bias + ceil_div(windows, 4) * 4),
        elements(workspace + workspace_elements) {}
};

/// A description whose windows are means of columns, on a weight that is folded first: one crossing
/// from Python. Rows that come out infinite are computed again, unfolded.
void folded_epilogue(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, std::vector<std::int64_t> plan, Tensor memory,
                     Tensor out) {
  Operands const operands(x);
  LinearTask whole(operands, x, weight, bias, name, params);
  gemm::Problem const& problem = whole.call.problem;
  int const window = whole.shape.window;
  STD_TORCH_CHECK(!params.empty() && params[0] == window && window <= problem.n,
                  "the first number of '", name, "' must be its window, of up to ", problem.n);
  whole.call.out = whole.output(operands, out);

  LinearCall call = whole.call;
  std::vector<double> unpooled = params;
  unpooled[0] = 1.0;
  call.problem.n = problem.n / window;
  call.problem.weight_stride = problem.k;
  call.plan = plan_of(plan, shape_of(whole.epilogue, unpooled, call.problem.n), call.problem);
  FoldedMemory const parts(call.problem.n, problem.k, call.plan.workspace);
  float* const means = operands.dense(memory, "memory", parts.elements);
  STD_TORCH_CHECK(epilogue::is_aligned(means), "memory must be 16-byte aligned");
  float* const means_bias = bias ? means + parts.bias : nullptr;
  call.problem.weight = means;
  call.arguments = arguments_of(means_bias, unpooled);
  call.workspace = means + parts.workspace;

  check(run_fold_rows(problem.weight, problem.weight_stride, whole.call.arguments.bias, problem.n,
                      problem.k, window, means, means_bias, call.stream));
  check(run_linear(whole.epilogue, call));
  check(whole.epilogue.refine(whole.call));
}

std::int64_t folded_memory(std::int64_t windows, std::int64_t k, std::int64_t workspace) {
  return FoldedMemory(extent(windows), extent(k), workspace).elements;
}

std::vector<std::int64_t> plan(std::string name, std::vector<double> params, std::int64_t m,
                               std::int64_t n, std::int64_t k, std::vector<std::int64_t> gpu,
                               std::int64_t folded) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  std::optional<Plan> const best = choose_plan(request_of(shape, m, n, k, gpu_of(gpu), folded));
  STD_TORCH_CHECK(best.has_value(), "no kernel can run ", m, " x ", n, " x ", k,
                  ": a launch takes at most 2^31 - 1 tiles");
  return list_of(*best);
}

std::vector<std::int64_t> plan_for(std::string name, std::vector<double> params, std::int64_t m,
                                   std::int64_t n, std::int64_t k, std::vector<std::int64_t> gpu,
                                   std::string kernel, std::int64_t splits) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  PlanRequest const request = request_of(shape, m, n, k, gpu_of(gpu), 1);
  for (int index = 0; index < kKernelCount; ++index) {
    if (kernel == kKernels[index].name) {
      std::optional<Plan> const forced = make_plan(request, index, extent(splits));
      STD_TORCH_CHECK(forced.has_value(), kernel, " with ", splits, " splits cannot run ", m, " x ",
                      n, " x ", k);
      return list_of(*forced);
    }
  }
  STD_TORCH_CHECK(false, "no kernel named '", kernel, "'");
}

std::string describe_plan(std::vector<std::int64_t> plan) {
  int const kernel = kernel_of(plan);
  return describe({kernel, extent(plan[1]), plan[2], plan[3], plan[4] != 0});
}

std::int64_t matrix_workspace_for(std::string name, std::vector<double> params, std::int64_t m,
                                  std::int64_t n) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  return matrix_workspace(extent(m), extent(n / shape.window), shape.fragment_width, shape.reduces);
}

bool choose_folding_for(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t kernel_size,
                        std::vector<std::int64_t> gpu) {
  STD_TORCH_CHECK(kernel_size >= 1, "kernel_size must be positive, got ", kernel_size);
  return choose_folding(extent(m), extent(n), extent(k), extent(kernel_size), gpu_of(gpu));
}

template <class Items, class Name>
void json_list(std::ostringstream& json, char const* key, Items const& items, Name name) {
  json << '"' << key << "\": [";
  char const* separator = "";
  for (auto const& item : items) {
    json << separator << '"' << name(item) << '"';
    separator = ", ";
  }
  json << ']';
}

/// CUDA versions, 1000 * major + 10 * minor: the newest that the driver runs (0: no driver), and
/// that of the runtime in this binary.
std::vector<std::int64_t> cuda_versions() {
  int driver = 0;
  int runtime = 0;
  check({cudaDriverGetVersion(&driver), "cudaDriverGetVersion"});
  check({cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"});
  return {driver, runtime};
}

std::string build_info() {
  std::ostringstream json;
  json << "{\"cutlass\": \"" << kCutlassVersion << "\", \"nvcc\": \"" << kNvccVersion << "\", ";
  json_list(json, "architectures", kArchitectures, [](char const* name) { return name; });
  json << ", ";
  json_list(json, "kernels", kKernels, [](KernelInfo const& kernel) { return kernel.name; });
  json << ", ";
  json_list(json, "epilogues", epilogue_names(), [](std::string const& name) { return name; });
  json << '}';
  return json.str();
}

}  // namespace
}  // namespace cutlass_ops

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CUDA, library) {
  library.impl("_linear_epilogue", TORCH_BOX(&cutlass_ops::linear_epilogue));
  library.impl("_linear_softmax", TORCH_BOX(&cutlass_ops::linear_softmax));
  library.impl("_matrix_epilogue", TORCH_BOX(&cutlass_ops::matrix_epilogue));
  library.impl("_folded_epilogue", TORCH_BOX(&cutlass_ops::folded_epilogue));
  library.impl("_row_softmax", TORCH_BOX(&cutlass_ops::row_softmax));
  library.impl("_fold_rows", TORCH_BOX(&cutlass_ops::fold_rows));
}

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CompositeExplicitAutograd, library) {
  library.impl("_plan", TORCH_BOX(&cutlass_ops::plan));
  library.impl("_plan_for", TORCH_BOX(&cutlass_ops::plan_for));
  library.impl("_describe_plan", TORCH_BOX(&cutlass_ops::describe_plan));
  library.impl("_folded_memory", TORCH_BOX(&cutlass_ops::folded_memory));
  library.impl("_matrix_workspace", TORCH_BOX(&cutlass_ops::matrix_workspace_for));
  library.impl("_choose_folding", TORCH_BOX(&cutlass_ops::choose_folding_for));
  library.impl("_cuda_versions", TORCH_BOX(&cutlass_ops::cuda_versions));
  library.impl("_build_info", TORCH_BOX(&cutlass_ops::build_info));
}
