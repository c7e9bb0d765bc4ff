// Entry of a linear layer with an epilogue: runs a plan.
#pragma once

#include "registry.h"
#include "row_kernels.h"

namespace cutlass_ops {

/// z = x Wᵀ as [splits, m, n] partial matrices, by any kernel of the table; the workspace is for
/// stream-K alone, unless they lie there.
Status run_partial_gemm(LinearCall const& call, float* partials);

/// Those of a plan that is not direct, in its workspace.
epilogue::MatrixSource partial_matrices(LinearCall const& call);

/// The halves that the plan's kernel wants, if it does: those of x, and, unless the call has them,
/// those of the weight or of what `weight` says.
Status make_pairs(LinearCall& call, SplitTask weight = {});

/// The GEMM with its epilogue, by the way that the plan says; the halves have been made.
Status run_linear(Epilogue const& epilogue, LinearCall const& call);

/// Computes again, from the operands themselves, what depends on infinities and NaN that halves
/// cannot hold.
Status repair_linear(Epilogue const& epilogue, LinearCall const& call);

}  // namespace cutlass_ops
