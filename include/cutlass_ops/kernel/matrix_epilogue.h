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

/// Rows whose segments lie in one CTA: it combines them in shared memory, in their order.
template <int kWidth, class Chain, class Sink>
CUTLASS_OPS_DEVICE void reduce_rows(MatrixEpilogueParams<Chain, Sink> const& params) {
  using Monoid = typename Sink::Monoid;
  constexpr int kWarps = MatrixEpilogueConfig::kThreads / 32;
  __shared__ float partials[kWarps];
  int const rows_per_cta = kWarps / params.slots;
  int const warp = threadIdx.x / 32;
  int const lane = threadIdx.x % 32;
  int const slot = warp % params.slots;
  int const begin = slot * params.slot_columns;
  int const end = min(params.output_columns, begin + params.slot_columns);
  // 64 bits: a step of up to 2^20 CTAs can pass the limit of rows, 2^31 - 4097.
  std::int64_t const stride = std::int64_t{gridDim.x} * rows_per_cta;
  for (std::int64_t first = std::int64_t{blockIdx.x} * rows_per_cta; first < params.rows;
       first += stride) {
    std::int64_t const row = first + warp / params.slots;
    if (row < params.rows) {
      epilogue::visit_row<kWidth>(params.chain, params.sink.at(partials, int(first)), params.source,
                                  int(row), begin, end, slot, lane);
    }
    __syncthreads();
    if (row < params.rows && slot == 0 && lane == 0) {
      float value = partials[warp];
      for (int other = 1; other < params.slots; ++other) {
        value = Monoid::combine(value, partials[warp + other]);
      }
      params.combined[row] = value;
    }
    __syncthreads();
  }
}

/// One warp per segment of a row, in a grid-stride loop: any number of rows fits any grid.
template <int kWidth, class Chain, class Sink>
__global__ void __launch_bounds__(MatrixEpilogueConfig::kThreads) matrix_epilogue(
    __grid_constant__ MatrixEpilogueParams<Chain, Sink> const params) {
  constexpr int kWarps = MatrixEpilogueConfig::kThreads / 32;
  wait_for_predecessor();
  release_successor();
  if constexpr (Sink::kReduces) {
    if (params.combined != nullptr) {
      reduce_rows<kWidth>(params);
      return;
    }
  }
  int const lane = threadIdx.x % 32;
  std::int64_t const items = std::int64_t{params.rows} * params.slots;
  std::int64_t const stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; item < items;
       item += stride) {
    int const row = int(item / params.slots);
    int const slot = int(item % params.slots);
    int const begin = slot * params.slot_columns;
    // Not min(output_columns, begin + slot_columns), which passes 2^31 at the limit of columns.
    int const end = begin + min(params.slot_columns, params.output_columns - begin);
    epilogue::visit_row<kWidth>(params.chain, params.sink, params.source, row, begin, end, slot,
                                lane);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
