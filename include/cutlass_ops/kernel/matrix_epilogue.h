// Adapter of matrices in memory: takes a description's chain and sink over a matrix, or over the
// sum of split-K partials.
#pragma once

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/epilogue/row_visitor.h"

namespace cutlass_ops {
namespace kernel {

struct MatrixEpilogueConfig {
  static constexpr int kThreads = 256;
};

template <class Chain, class Sink>
struct MatrixEpilogueParams {
  epilogue::MatrixSource source;
  Chain chain;
  Sink sink;
  int rows;
  int output_columns;
  int slots;         ///< segments of a row, one warp each
  int slot_columns;  ///< output columns of a segment, a multiple of 4
  /// [rows]: where the segments of a row, all in one CTA, are combined; nullptr where they are not.
  float* combined;
};

/// A reduction's partials of a row, which warps of this CTA have just left, into its result.
template <class Sink>
CUTLASS_OPS_DEVICE void combine_segments(Sink const& sink, std::int64_t row, int slots,
                                         float* out) {
  using Monoid = typename Sink::Monoid;
  float value = Monoid::identity();
  for (int slot = 0; slot < slots; ++slot) {
    value = Monoid::combine(value, sink.partials[row * slots + slot]);
  }
  out[row] = value;
}

/// One warp per segment of a row, in a grid-stride loop: any number of rows fits any grid.
template <int kWidth, class Chain, class Sink>
__global__ void __launch_bounds__(MatrixEpilogueConfig::kThreads) matrix_epilogue(
    __grid_constant__ MatrixEpilogueParams<Chain, Sink> const params) {
  constexpr int kWarps = MatrixEpilogueConfig::kThreads / 32;
  wait_for_predecessor();
  int const lane = threadIdx.x % 32;
  std::int64_t const items = std::int64_t{params.rows} * params.slots;
  std::int64_t const stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kWarps; first < items; first += stride) {
    std::int64_t const item = first + threadIdx.x / 32;
    int const row = int(item / params.slots);
    int const slot = int(item % params.slots);
    if (item < items) {
      int const begin = slot * params.slot_columns;
      int const end = min(params.output_columns, begin + params.slot_columns);
      epilogue::visit_row<kWidth>(params.chain, params.sink, params.source, row, begin, end, slot,
                                  lane);
    }
    if constexpr (Sink::kReduces) {
      if (params.combined != nullptr) {
        __syncthreads();
        if (item < items && slot == 0 && lane == 0) {
          combine_segments(params.sink, row, params.slots, params.combined);
        }
      }
    }
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
