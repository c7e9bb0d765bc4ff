// Launchers of the kernels that train a row maximum.
#pragma once

#include <cuda_runtime.h>

#include "cutlass_ops/kernel/winners.h"
#include "cutlass_ops/status.h"
#include "row_kernels.h"

namespace cutlass_ops {

/// values, winners and slopes of each row of h.
Status run_row_argmax(kernel::RowArgmaxParams const& params, Activation activation,
                      cudaStream_t stream);

/// out[rows, columns]: the gradient of x. `column_tiles` is filled in.
Status run_gather_winners(kernel::GatherParams params, cudaStream_t stream);

/// The gradients in `target`. With more than one slice the sums of each go to `partials`, [slices,
/// windows, columns + 1]. `column_tiles` and `slice_rows` are filled in.
Status run_scatter_winners(kernel::ScatterParams params, kernel::SpreadTarget const& target,
                           float* partials, cudaStream_t stream);

}  // namespace cutlass_ops
