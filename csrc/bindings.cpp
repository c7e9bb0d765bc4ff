// The only file that sees torch: tensors to raw pointers, on the LibTorch stable ABI. Schemas are
// defined in Python (cutlass_ops/schemas.py), which checks dtypes, shapes and strides; what is
// checked here guards the memory alone.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <climits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "build_info.h"
#include "kernel_table.h"
#include "linear.h"
#include "matrix_slots.h"
#include "row_kernels.h"
#include "stream.h"

namespace cutlass_ops {
namespace {

using torch::stable::Tensor;
using DeviceGuard = torch::stable::accelerator::DeviceGuard;

void check(Status const& status) {
  STD_TORCH_CHECK(status.ok(), status.what, ": ", cudaGetErrorString(status.error));
}

int extent(std::int64_t size) {
  // A tile, a chunk or a stride of 4096 that sticks out must not overflow its 32-bit index.
  STD_TORCH_CHECK(size >= 0 && size <= INT_MAX - 4096, "an extent of ", size,
                  " is beyond 2^31 - 4097");
  return static_cast<int>(size);
}

float const* data(Tensor const& tensor) { return static_cast<float const*>(tensor.data_ptr()); }
float* mutable_data(Tensor const& tensor) { return static_cast<float*>(tensor.data_ptr()); }

float const* bias_data(std::optional<Tensor> const& bias) { return bias ? data(*bias) : nullptr; }

/// Elements between rows; a matrix of one row may carry any stride.
std::int64_t row_stride(Tensor const& matrix) {
  STD_TORCH_CHECK(matrix.dim() == 2, "a matrix has 2 dimensions, not ", matrix.dim());
  STD_TORCH_CHECK(matrix.size(1) <= 1 || matrix.stride(1) == 1, "columns must be contiguous");
  return matrix.size(0) <= 1 ? matrix.size(1) : matrix.stride(0);
}

gemm::Problem problem_of(Tensor const& x, Tensor const& weight) {
  STD_TORCH_CHECK(x.size(1) == weight.size(1), "x has ", x.size(1), " columns, weight ",
                  weight.size(1));
  return {data(x),           data(weight),  extent(x.size(0)), extent(weight.size(0)),
          extent(x.size(1)), row_stride(x), row_stride(weight)};
}

Epilogue const& epilogue_of(std::string const& name) {
  Epilogue const* const epilogue = find_epilogue(name);
  STD_TORCH_CHECK(epilogue != nullptr, "no epilogue named '", name,
                  "' is registered, or more than one is");
  return *epilogue;
}

epilogue::Arguments arguments_of(std::optional<Tensor> const& bias,
                                 std::vector<double> const& params) {
  return {bias_data(bias), params.data(), static_cast<int>(params.size())};
}

/// The description's facts for a linear of `columns` columns; the numbers must be those that it
/// takes.
EpilogueShape shape_of(std::string const& name, std::vector<double> const& params, int columns) {
  EpilogueShape const shape = epilogue_of(name).shape(arguments_of(std::nullopt, params), columns);
  STD_TORCH_CHECK(shape.param_count == static_cast<int>(params.size()), "epilogue '", name,
                  "' takes ", shape.param_count, " params, not ", params.size());
  return shape;
}

Plan plan_of(std::vector<std::int64_t> const& list) {
  STD_TORCH_CHECK(list.size() == 5 && list[0] >= 0 && list[0] < kKernelCount && list[1] >= 1,
                  "not a plan");
  return {static_cast<int>(list[0]), static_cast<int>(list[1]), list[4] != 0, list[2], list[3]};
}

std::vector<std::int64_t> list_of(Plan const& plan) {
  return {plan.kernel, plan.splits, plan.workspace, plan.nanoseconds, plan.direct ? 1 : 0};
}

PlanRequest request_of(std::string const& name, std::vector<double> const& params, std::int64_t m,
                       std::int64_t n, std::int64_t k, std::int64_t sm_count, std::int64_t folded) {
  EpilogueShape const shape = shape_of(name, params, extent(n));
  return {extent(m),
          extent(n),
          extent(k),
          shape.window,
          shape.reduces,
          shape.fragment_width,
          static_cast<int>(sm_count),
          extent(folded)};
}

// ---- kernels
// -------------------------------------------------------------------------------------------------------

void linear_epilogue(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, std::vector<std::int64_t> plan, Tensor workspace,
                     Tensor out) {
  DeviceGuard const guard(x.get_device_index());  // otherwise the launch goes to the current device
  LinearCall call{};
  call.problem = problem_of(x, weight);
  shape_of(name, params, call.problem.n);
  call.arguments = arguments_of(bias, params);
  call.plan = plan_of(plan);
  STD_TORCH_CHECK(workspace.numel() >= call.plan.workspace, "the workspace holds ",
                  workspace.numel(), " elements, the plan needs ", call.plan.workspace);
  call.workspace = mutable_data(workspace);
  call.out = mutable_data(out);
  call.stream = current_stream(x.get_device_index());
  check(run_linear(epilogue_of(name), call));
}

void matrix_epilogue(Tensor z, std::optional<Tensor> bias, std::string name,
                     std::vector<double> params, Tensor workspace, Tensor out) {
  DeviceGuard const guard(z.get_device_index());
  MatrixCall call{};
  int const columns = extent(z.size(1));
  EpilogueShape const shape = shape_of(name, params, columns);
  call.source = epilogue::MatrixSource::make(data(z), columns, row_stride(z));
  call.rows = extent(z.size(0));
  call.arguments = arguments_of(bias, params);
  std::int64_t const needed =
      matrix_workspace(call.rows, columns / shape.window, shape.fragment_width, shape.reduces);
  STD_TORCH_CHECK(workspace.numel() >= needed, "the workspace holds ", workspace.numel(),
                  " elements, ", needed, " are needed");
  call.workspace = mutable_data(workspace);
  call.out = mutable_data(out);
  call.stream = current_stream(z.get_device_index());
  check(epilogue_of(name).run_matrix(call));
}

void refine_nonfinite(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                      std::vector<double> params, Tensor out) {
  DeviceGuard const guard(x.get_device_index());
  LinearCall call{};
  call.problem = problem_of(x, weight);
  shape_of(name, params, call.problem.n);
  call.arguments = arguments_of(bias, params);
  call.out = mutable_data(out);
  call.stream = current_stream(x.get_device_index());
  check(epilogue_of(name).refine(call));
}

void row_softmax(Tensor z, std::optional<Tensor> bias, std::string activation, Tensor out) {
  DeviceGuard const guard(z.get_device_index());
  Activation const kind = activation == "gelu"        ? Activation::kGelu
                          : activation == "gelu_tanh" ? Activation::kGeluTanh
                                                      : Activation::kIdentity;
  auto const source = epilogue::MatrixSource::make(data(z), extent(z.size(1)), row_stride(z));
  check(run_row_softmax(source, extent(z.size(0)), bias_data(bias), kind, mutable_data(out),
                        current_stream(z.get_device_index())));
}

/// Both kernels of op A in one crossing from Python, which costs the host microseconds each time.
void linear_softmax(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string name,
                    std::vector<std::int64_t> plan, Tensor workspace, std::string activation,
                    Tensor z, Tensor out) {
  linear_epilogue(x, weight, bias, name, {}, plan, workspace, z);
  row_softmax(z, std::nullopt, activation, out);
}

void fold_rows(Tensor weight, std::int64_t kernel_size, Tensor out) {
  DeviceGuard const guard(weight.get_device_index());
  STD_TORCH_CHECK(kernel_size >= 1 && kernel_size <= weight.size(0), "kernel_size ", kernel_size);
  check(run_fold_rows(data(weight), row_stride(weight), extent(weight.size(0)),
                      extent(weight.size(1)), static_cast<int>(kernel_size), mutable_data(out),
                      current_stream(weight.get_device_index())));
}

// ---- queries
// -------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> plan(std::string name, std::vector<double> params, std::int64_t m,
                               std::int64_t n, std::int64_t k, std::int64_t sm_count,
                               std::int64_t folded) {
  Plan const best = choose_plan(request_of(name, params, m, n, k, sm_count, folded));
  STD_TORCH_CHECK(best.nanoseconds < INT64_MAX, "no kernel can run ", m, " x ", n, " x ", k,
                  ": a launch takes at most 2^31 - 1 tiles");
  return list_of(best);
}

std::vector<std::int64_t> plan_for(std::string name, std::vector<double> params, std::int64_t m,
                                   std::int64_t n, std::int64_t k, std::int64_t sm_count,
                                   std::string kernel, std::int64_t splits) {
  PlanRequest const request = request_of(name, params, m, n, k, sm_count, 1);
  for (int index = 0; index < kKernelCount; ++index) {
    if (kernel == kKernels[index].name) {
      bool possible = false;
      Plan const forced = make_plan(request, index, static_cast<int>(splits), &possible);
      STD_TORCH_CHECK(possible, kernel, " with ", splits, " splits cannot run ", m, " x ", n, " x ",
                      k);
      return list_of(forced);
    }
  }
  STD_TORCH_CHECK(false, "no kernel named '", kernel, "'");
}

std::string describe_plan(std::vector<std::int64_t> plan) { return describe(plan_of(plan)); }

std::int64_t matrix_workspace_for(std::string name, std::vector<double> params, std::int64_t m,
                                  std::int64_t n) {
  EpilogueShape const shape = shape_of(name, params, extent(n));
  return matrix_workspace(extent(m), extent(n / shape.window), shape.fragment_width, shape.reduces);
}

bool choose_folding_for(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t kernel_size,
                        std::int64_t sm_count) {
  return choose_folding(extent(m), extent(n), extent(k), extent(kernel_size),
                        static_cast<int>(sm_count));
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
  library.impl("_refine_nonfinite", TORCH_BOX(&cutlass_ops::refine_nonfinite));
  library.impl("_row_softmax", TORCH_BOX(&cutlass_ops::row_softmax));
  library.impl("_fold_rows", TORCH_BOX(&cutlass_ops::fold_rows));
}

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CompositeExplicitAutograd, library) {
  library.impl("_plan", TORCH_BOX(&cutlass_ops::plan));
  library.impl("_plan_for", TORCH_BOX(&cutlass_ops::plan_for));
  library.impl("_describe_plan", TORCH_BOX(&cutlass_ops::describe_plan));
  library.impl("_matrix_workspace", TORCH_BOX(&cutlass_ops::matrix_workspace_for));
  library.impl("_choose_folding", TORCH_BOX(&cutlass_ops::choose_folding_for));
  library.impl("_build_info", TORCH_BOX(&cutlass_ops::build_info));
}
