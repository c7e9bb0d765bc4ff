// Launchers of the kernels that train a row maximum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cutlass_ops/kernel/winners.h"
#include "cutlass_ops/status.h"
#include "registry.h"
#include "row_kernels.h"

namespace cutlass_ops {

/// values, winners and slopes of each row of h = source + bias. Where h is of a folded weight,
/// `unfolded` is the call of op B that the values are the results of: they are repaired.
Status run_row_argmax(kernel::RowArgmaxParams const& params, Activation activation,
                      LinearCall const* unfolded, cudaStream_t stream);

/// What the gradients are made of, and where they go: those that are not wanted are nullptr.
struct WinnerGradients {
  kernel::Winners winners;
  float const* x;  ///< [rows, columns]
  std::int64_t x_stride;
  float const* weight;  ///< [windows, columns]
  std::int64_t weight_stride;
  int columns;
  float* grad_x;                ///< [rows, columns], contiguous
  kernel::SpreadTarget target;  ///< those of the weight and bias
  float* memory;                ///< of GradientMemory, for these

  bool sums() const { return target.weight != nullptr || target.bias != nullptr; }

  /// For the bias alone x is not read.
  int summed_columns() const { return target.weight != nullptr ? columns : 0; }
};

Status run_winner_gradients(WinnerGradients const& call, cudaStream_t stream);

}  // namespace cutlass_ops
