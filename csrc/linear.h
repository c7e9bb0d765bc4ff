// Entry of a linear layer with an epilogue: runs a plan.
#pragma once

#include "registry.h"

namespace cutlass_ops {

/// z = x Wᵀ as [splits, m, n] partial matrices, by any kernel of the table; the workspace is for
/// stream-K alone, unless they lie there.
Status run_partial_gemm(LinearCall const& call, float* partials);

/// The GEMM with its epilogue, by the way that the plan says.
Status run_linear(Epilogue const& epilogue, LinearCall const& call);

}  // namespace cutlass_ops
