// From the operands of a native op to the call of a linear layer: what the ops that run one share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "descriptions.h"
#include "linear.h"
#include "operands.h"
#include "pair_memory.h"

namespace cutlass_ops {

inline std::int64_t output_elements(EpilogueShape const& shape, std::int64_t rows,
                                    std::int64_t columns) {
  return shape.reduces ? rows : rows * (columns / shape.window);
}

/// The choice of a plan. It crosses from Python as two numbers, and what follows from it not at
/// all: that is made again, for the sizes of the call, and as a list it cost the host more.
struct Choice {
  std::int64_t kernel;
  std::int64_t splits;
};

/// `packed`: the halves of the weight need no room.
inline Plan plan_of(Choice choice, EpilogueShape const& shape, gemm::Problem const& problem,
                    bool packed) {
  int const kernel = kernel_of(choice.kernel);
  bool const asks = kernel == kStreamK128x128 || takes_halves(kernel);
  Gpu const gpu{asks ? multiprocessors() : 1, 0};
  std::optional<Plan> const plan =
      make_plan(request_of(shape, problem.m, problem.n, problem.k, gpu, 1, true, packed, true),
                kernel, extent(choice.splits));
  STD_TORCH_CHECK(plan.has_value(), "this plan cannot run ", problem.m, " x ", problem.n, " x ",
                  problem.k);
  return *plan;
}

inline gemm::Fp16Pairs pairs_of(Operands const& operands, Tensor const& pairs, int rows, int k) {
  float const* const memory = operands.dense(pairs, "pairs", PairMemory(rows, k).elements);
  STD_TORCH_CHECK(epilogue::is_aligned(memory), "pairs must be 16-byte aligned");
  return pairs_in(memory, rows, k);
}

/// A linear layer with the epilogue `name`: what does not depend on how it runs.
struct LinearTask {
  Epilogue const& epilogue;
  LinearCall call{};
  EpilogueShape shape;

  LinearTask(Operands const& operands, Tensor const& x, Tensor const& weight,
             std::optional<Tensor> const& bias, std::string const& name,
             std::vector<double> const& params, Layouts layouts = Layouts::kRows)
      : epilogue(epilogue_of(name)) {
    call.problem = problem_of(operands, x, weight, layouts);
    shape = shape_of(epilogue, params, call.problem.n);
    call.arguments = arguments_of(operands.bias(bias, call.problem.n), params);
    call.stream = operands.stream();
  }

  void set_plan(Operands const& operands, Choice choice, Tensor const& workspace,
                std::optional<Tensor> const& pairs) {
    call.plan = plan_of(choice, shape, call.problem, pairs.has_value());
    if (pairs) {
      call.weight_pairs = pairs_of(operands, *pairs, call.problem.n, call.problem.k);
    }
    call.workspace = operands.dense(workspace, "workspace", call.plan.workspace);
    STD_TORCH_CHECK(call.plan.ctas == 0 || epilogue::is_aligned(call.workspace),
                    "workspace must be 16-byte aligned");
  }

  float* output(Operands const& operands, Tensor const& out) const {
    return operands.dense(out, "out", output_elements(shape, call.problem.m, call.problem.n));
  }
};

}  // namespace cutlass_ops
