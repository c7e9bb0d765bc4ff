// What the kernels that repair results want to know of a call.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/kernel/refine_nonfinite.h"
#include "kernel_table.h"
#include "registry.h"

namespace cutlass_ops {

inline kernel::MissingHalves missing_halves(LinearCall const& call) {
  int const shares = call.plan.kernel == kFp16x3Narrow ? call.plan.splits : 1;
  return {call.x_scales,
          call.problem.m,
          shares,
          call.weight_pairs,
          call.column_flags,
          int(ceil_div(call.weight_pairs.rows, kKernels[call.plan.kernel].tile_n))};
}

template <class Chain>
kernel::RefineNonfiniteParams<Chain> refine_params(LinearCall const& call) {
  epilogue::Reader reader(call.arguments);
  Chain const chain = Chain::make(reader, call.problem.n);
  return {call.problem, chain, call.problem.n / chain.window(), call.out, missing_halves(call)};
}

}  // namespace cutlass_ops
