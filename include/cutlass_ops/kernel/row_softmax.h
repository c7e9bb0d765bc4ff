// Softmax over each row of chain(source + bias), the row in registers: softmax(z), or
// softmax(gelu(z + bias)), read once and written once.
//
// NaN and +inf need no case of their own: exp(NaN - m) is NaN, exp(inf - inf) is NaN, and either
// makes the sum, and so the whole row, NaN, as torch.softmax has it. The maximum may drop NaN for
// that reason. A row of -inf alone gives NaN too.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/kernel/reduce_threads.h"
#include "cutlass_ops/kernel/row_cut.h"
#include "cutlass_ops/kernel/row_share.h"

namespace cutlass_ops {
namespace kernel {

template <class Chain>
struct RowSoftmaxParams {
  epilogue::MatrixSource source;
  epilogue::Bias bias;
  Chain chain;  ///< elementwise steps
  float* out;   ///< [rows, columns], contiguous; may be the source itself
  int rows;
  int columns;
  bool vectorized;  ///< rows of `out` are 16-byte aligned; for the streaming kernel
};

template <class Chain>
CUTLASS_OPS_DEVICE float* row_of_out(RowSoftmaxParams<Chain> const& params, int row) {
  return params.out + std::int64_t{row} * params.columns;
}

template <class Rows, class Chain>
__global__ void __launch_bounds__(Rows::kCtaThreads, Rows::kMinCtas) row_softmax(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  static_assert(Rows::kCluster == 1, "row_softmax_cluster takes these");
  wait_for_predecessor();
  release_successor();
  int const row = int(blockIdx.x * Rows::kRowsPerCta + threadIdx.x / Rows::kThreads);
  int const thread = int(threadIdx.x % Rows::kThreads);
  // The reductions are collective: threads of rows beyond the last take part, with no columns.
  bool const exists = Rows::kRowsPerCta == 1 || row < params.rows;
  RowCut const cut = cut_row<Rows>(row_of_out(params, row), exists ? params.columns : 0);
  RowShare<Rows> share;
  share.take(cut, thread, 0, cut.body, true);
  share.load(params.source, params.bias, row);
  float largest = share.activate(params.chain, row);
  largest = reduce_threads<FloatMax, Rows::kThreads>(largest);
  float sum = share.exponentiate(largest);
  sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
  share.store(row_of_out(params, row) + share.column, 1.0f / sum);
}

}  // namespace kernel
}  // namespace cutlass_ops
