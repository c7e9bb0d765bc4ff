// The queries on the LibTorch stable ABI: plans, sizes and what was built. They run no kernel.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "build_info.h"
#include "descriptions.h"
#include "folded_memory.h"
#include "kernel_table.h"
#include "matrix_slots.h"
#include "pair_memory.h"
#include "plan.h"

namespace cutlass_ops {
namespace {

std::vector<std::int64_t> list_of(Plan const& plan) {
  return {plan.kernel, plan.splits, plan.workspace, plan.nanoseconds, plan.direct ? 1 : 0};
}

Gpu gpu_of(std::vector<std::int64_t> const& gpu) {
  constexpr std::int64_t kMost = 1 << 16;  // so that no product of it overflows
  STD_TORCH_CHECK(gpu.size() == 2 && gpu[0] >= 1 && gpu[0] <= kMost,
                  "a GPU is its number of multiprocessors, 1 to 65536, and 10 * major + minor");
  return {extent(gpu[0]), extent(gpu[1])};
}

std::vector<std::int64_t> plan(std::string name, std::vector<double> params, std::int64_t m,
                               std::int64_t n, std::int64_t k, std::vector<std::int64_t> gpu,
                               std::int64_t folded, bool fp16x3, bool packed, bool x_aligned) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  PlanRequest const request =
      request_of(shape, m, n, k, gpu_of(gpu), folded, fp16x3, packed, x_aligned);
  std::optional<Plan> const best = choose_plan(request);
  STD_TORCH_CHECK(best.has_value(), "no kernel can run ", m, " x ", n, " x ", k,
                  ": a launch takes at most 2^31 - 1 tiles");
  return list_of(*best);
}

std::vector<std::int64_t> plan_for(std::string name, std::vector<double> params, std::int64_t m,
                                   std::int64_t n, std::int64_t k, std::vector<std::int64_t> gpu,
                                   std::string kernel, std::int64_t splits, bool packed) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  PlanRequest const request = request_of(shape, m, n, k, gpu_of(gpu), 1, true, packed, true);
  for (int index = 0; index < kKernelCount; ++index) {
    if (kernel == kKernels[index].name) {
      STD_TORCH_CHECK(runs_on(index, request.gpu), kernel, " cannot run on this GPU");
      std::optional<Plan> const forced = make_plan(request, index, extent(splits));
      STD_TORCH_CHECK(forced.has_value(), kernel, " with ", splits, " splits cannot run ", m, " x ",
                      n, " x ", k);
      return list_of(*forced);
    }
  }
  STD_TORCH_CHECK(false, "no kernel named '", kernel, "'");
}

std::string describe_plan(std::vector<std::int64_t> plan) {
  STD_TORCH_CHECK(plan.size() == 5, "a plan is 5 numbers, not ", plan.size());
  int const kernel = kernel_of(plan[0]);
  return describe({kernel, extent(plan[1]), plan[2], plan[3], plan[4] != 0});
}

std::int64_t matrix_workspace_for(std::string name, std::vector<double> params, std::int64_t m,
                                  std::int64_t n) {
  EpilogueShape const shape = shape_of(epilogue_of(name), params, extent(n));
  return matrix_workspace(extent(m), extent(n / shape.window), shape.fragment_width, shape.reduces);
}

std::int64_t folded_memory(std::int64_t windows, std::int64_t k, std::int64_t kernel,
                           std::int64_t workspace) {
  return FoldedMemory(extent(windows), extent(k), kernel_of(kernel), workspace).elements;
}

std::int64_t fp16_pairs_elements(std::int64_t rows, std::int64_t k) {
  return PairMemory(extent(rows), extent(k)).elements;
}

bool choose_folding_for(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t kernel_size,
                        std::vector<std::int64_t> gpu, bool fp16x3, bool x_aligned) {
  STD_TORCH_CHECK(kernel_size >= 1, "kernel_size must be positive, got ", kernel_size);
  return choose_folding(extent(m), extent(n), extent(k), extent(kernel_size), gpu_of(gpu), fp16x3,
                        x_aligned);
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

STABLE_TORCH_LIBRARY_IMPL(cutlass_ops, CompositeExplicitAutograd, library) {
  library.impl("_plan", TORCH_BOX(&cutlass_ops::plan));
  library.impl("_plan_for", TORCH_BOX(&cutlass_ops::plan_for));
  library.impl("_describe_plan", TORCH_BOX(&cutlass_ops::describe_plan));
  library.impl("_folded_memory", TORCH_BOX(&cutlass_ops::folded_memory));
  library.impl("_fp16_pairs_elements", TORCH_BOX(&cutlass_ops::fp16_pairs_elements));
  library.impl("_matrix_workspace", TORCH_BOX(&cutlass_ops::matrix_workspace_for));
  library.impl("_choose_folding", TORCH_BOX(&cutlass_ops::choose_folding_for));
  library.impl("_cuda_versions", TORCH_BOX(&cutlass_ops::cuda_versions));
  library.impl("_build_info", TORCH_BOX(&cutlass_ops::build_info));
}
