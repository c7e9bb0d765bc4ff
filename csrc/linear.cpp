#include "linear.h"

#include "kernel_table.h"
#include "pair_memory.h"

namespace cutlass_ops {

Status make_pairs(LinearCall& call, SplitTask weight) {
  int const kernel = call.plan.kernel;
  if (!takes_halves(kernel)) {
    return {};
  }
  bool const splits_x = kernel == kFp16x3;
  gemm::Problem const& problem = call.problem;
  float* const flags = call.workspace + call.plan.workspace - call.plan.pairs_elements;
  float* const memory = flags + column_flag_words(problem.n, kKernels[kernel].tile_n);
  call.column_flags = reinterpret_cast<int*>(flags);
  call.x_scales = reinterpret_cast<gemm::Fp16Scale*>(memory);
  if (splits_x) {
    call.x_pairs = pairs_in(memory, problem.m, problem.k);
    call.x_scales = scales_in(memory, problem.m, problem.k);
  }
  if (call.weight_pairs.halves == nullptr) {
    if (weight.source == nullptr) {
      weight = {problem.weight,
                problem.weight_stride,
                problem.weight_step,
                1,
                problem.n,
                problem.k,
                nullptr,
                nullptr,
                nullptr};
    }
    weight.memory = memory + x_elements(kernel, call.plan.splits, problem.m, problem.k);
    call.weight_pairs = pairs_in(weight.memory, problem.n, problem.k);
  }
  SplitTask x{};
  if (splits_x) {
    x = {problem.x, problem.x_stride, problem.x_step, 1,      problem.m,
         problem.k, memory,           nullptr,        nullptr};
  }
  if (weight.memory != nullptr) {
    return run_split_weight(weight, x, call.stream);
  }
  return splits_x ? run_split_x(x, call.weight_pairs, call.stream) : Status{};
}

Status repair_linear(Epilogue const& epilogue, LinearCall const& call) {
  return takes_halves(call.plan.kernel) ? epilogue.refine(call) : Status{};
}

epilogue::MatrixSource partial_matrices(LinearCall const& call) {
  gemm::Problem const& problem = call.problem;
  return epilogue::MatrixSource::make(call.workspace, problem.n, problem.n, call.plan.splits,
                                      std::int64_t{problem.m} * problem.n);
}

Status run_linear(Epilogue const& epilogue, LinearCall const& call) {
  if (call.plan.direct) {
    return epilogue.run_gemm(call);
  }
  gemm::Problem const& problem = call.problem;
  Status const status = run_partial_gemm(call, call.workspace);
  if (!status.ok()) {
    return status;
  }
  std::int64_t const elements = std::int64_t{problem.m} * problem.n;
  MatrixCall matrix{};
  matrix.source = partial_matrices(call);
  matrix.rows = problem.m;
  matrix.arguments = call.arguments;
  matrix.workspace = call.workspace + call.plan.splits * elements;
  matrix.out = call.out;
  matrix.stream = call.stream;
  return epilogue.run_matrix(matrix);
}

}  // namespace cutlass_ops
