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

/// The gradients in `target`, from x, or from the coefficients alone. `memory`: of GradientMemory.
Status run_scatter_winners(kernel::Winners const& winners, float const* x, std::int64_t x_stride,
                           int columns, kernel::SpreadTarget const& target, float* memory,
                           cudaStream_t stream);

}  // namespace cutlass_ops
