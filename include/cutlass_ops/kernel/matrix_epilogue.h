// Adapter of matrices in memory: takes a description's chain and sink over a matrix, or over the
// sum of split-K partials.
#pragma once

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
};

/// One warp per segment of a row, in a grid-stride loop: any number of rows fits any grid.
template <int kWidth, class Chain, class Sink>
__global__ void __launch_bounds__(MatrixEpilogueConfig::kThreads) matrix_epilogue(
    __grid_constant__ MatrixEpilogueParams<Chain, Sink> const params) {
  constexpr int kWarps = MatrixEpilogueConfig::kThreads / 32;
  int const lane = threadIdx.x % 32;
  std::int64_t const items = std::int64_t{params.rows} * params.slots;
  std::int64_t const stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; item < items;
       item += stride) {
    int const row = int(item / params.slots);
    int const slot = int(item % params.slots);
    int const begin = slot * params.slot_columns;
    int const end = min(params.output_columns, begin + params.slot_columns);
    epilogue::visit_row<kWidth>(params.chain, params.sink, params.source, row, begin, end, slot, lane);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
