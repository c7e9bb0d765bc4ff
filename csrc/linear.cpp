#include "linear.h"

namespace cutlass_ops {

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
