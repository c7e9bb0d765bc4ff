// Softmax over rows of which the registers of a CTA hold the first part and its shared memory the
// rest: no other CTA takes part, and more is in flight than registers alone can take.
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/row_rest.h"
#include "cutlass_ops/kernel/row_softmax.h"

namespace cutlass_ops {
namespace kernel {

template <class Rows, class Chain>
__global__ void __launch_bounds__(Rows::kCtaThreads, Rows::kMinCtas) row_softmax_shared(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  static_assert(Rows::kCluster == 1 && Rows::kRowsPerCta == 1, "a CTA takes one row");
  extern __shared__ float4 row_softmax_slots[];
  wait_for_predecessor();
  release_successor();
  int const row = int(blockIdx.x);
  RowCut const cut = cut_row<Rows>(row_of_out(params, row), params.columns);
  RowShare<Rows> share;
  share.take(cut, int(threadIdx.x), 0, cut.body, true);
  auto const rest = RowRest<Rows>::make(
      share, reinterpret_cast<epilogue::Fragment<Rows::kWidth>*>(row_softmax_slots),
      int(threadIdx.x));
  rest.load(params.source, row);
  share.load(params.source, params.bias, row);
  float largest = share.activate(params.chain, row);
  wait_for_copies();
  rest.add(params.source, params.bias, row);
  largest = rest.activate(params.chain, row, largest);
  largest = reduce_threads<FloatMax, Rows::kThreads>(largest);
  float sum = share.exponentiate(largest);
  sum = rest.exponentiate(largest, sum);
  sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
  float const scale = 1.0f / sum;
  rest.store(row_of_out(params, row), scale);
  share.store(row_of_out(params, row) + share.column, scale);
}

}  // namespace kernel
}  // namespace cutlass_ops
