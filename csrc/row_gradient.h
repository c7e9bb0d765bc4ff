// Launcher of the row part of op A's backward.
#pragma once

#include <cuda_runtime.h>

#include "cutlass_ops/kernel/gradient_share.h"
#include "cutlass_ops/status.h"
#include "row_kernels.h"

namespace cutlass_ops {

/// Rows of `sums` with which run_row_gradient is to sum the columns of dz, and those are to be
/// added up; 0 where the columns of dz itself are. It follows from the sizes alone, and so do the
/// bits.
int row_gradient_groups(int rows, int columns);

/// params.dz = the gradient, and params.sums, of `groups` rows, unless it is nullptr.
Status run_row_gradient(kernel::RowGradientParams const& params, int groups, Activation activation,
                        cudaStream_t stream);

}  // namespace cutlass_ops
