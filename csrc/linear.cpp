#include "linear.h"

#include "kernel_table.h"
#include "pair_memory.h"
#include "row_kernels.h"

namespace cutlass_ops {

Status make_pairs(LinearCall& call) {
  if (call.plan.kernel != kFp16x3) {
    return {};
  }
  gemm::Problem const& problem = call.problem;
  float* const x = call.workspace + call.plan.pairs;
  call.x_pairs = pairs_in(x, problem.m, problem.k);
  Status status;
  if (call.weight_pairs.halves == nullptr) {
    float* const weight = x + PairMemory(problem.m, problem.k).elements;
    call.weight_pairs = pairs_in(weight, problem.n, problem.k);
    status = run_split_rows(problem.weight, problem.weight_stride, 1, true, weight, problem.n,
                            problem.k, call.stream);
  }
  // Last, so that the halves of x, which every column of tiles reads, are in L2.
  return status.ok() ? run_split_rows(problem.x, problem.x_stride, 1, false, x, problem.m,
                                      problem.k, call.stream)
                     : status;
}

Status repair_linear(Epilogue const& epilogue, LinearCall const& call) {
  return call.plan.kernel == kFp16x3 ? epilogue.refine(call) : Status{};
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
  matrix.source = epilogue::MatrixSource::make(call.workspace, problem.n, problem.n,
                                               call.plan.splits, elements);
  matrix.rows = problem.m;
  matrix.arguments = call.arguments;
  matrix.workspace = call.workspace + call.plan.splits * elements;
  matrix.out = call.out;
  matrix.stream = call.stream;
  return epilogue.run_matrix(matrix);
}

}  // namespace cutlass_ops
