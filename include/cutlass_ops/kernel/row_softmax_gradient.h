// The gradient of softmax(activation(z + bias)) over each row: dz = activation'(h) * y * (g - sum(g
// * y)), with h = z + bias, y the softmax and g the gradient of it. In registers each operand is
// read once; rows too long for that stream, twice.
//
// NaN needs no case of its own: a row of y that has one is NaN all over, and so is its sum. At an
// infinite h activation' is NaN, and y too.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/kernel/gradient_share.h"
#include "cutlass_ops/kernel/reduce_threads.h"
#include "cutlass_ops/kernel/row_softmax_streaming.h"

namespace cutlass_ops {
namespace kernel {

CUTLASS_OPS_DEVICE float* row_of_dz(RowGradientParams const& params, int row) {
  return params.dz + std::int64_t{row} * params.columns;
}

/// A group of threads takes every so many-th row, as many as there are groups. What it sums lies in
/// dynamic shared memory, kColumns floats a thread, in slots that no other thread touches.
template <class Rows, class Activation>
__global__ void __launch_bounds__(Rows::kCtaThreads, Rows::kMinCtas) row_softmax_gradient(
    __grid_constant__ RowGradientParams const params) {
  static_assert(Rows::kCluster == 1, "a CTA has its rows for itself");
  using Share = GradientShare<Rows>;
  using Fragment = typename Share::Fragment;
  extern __shared__ float4 row_gradient_slots[];
  wait_for_predecessor();
  release_successor();
  int const thread = int(threadIdx.x % Rows::kThreads);
  int const in_cta = int(threadIdx.x / Rows::kThreads);
  Fragment* const slots = reinterpret_cast<Fragment*>(row_gradient_slots) + threadIdx.x;
  if (params.sums != nullptr) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Share::kFragments; ++i) {
      slots[i * Rows::kCtaThreads] = {};
    }
  }
  // Unsigned: up to 2^31 rows, and as many groups beyond them.
  unsigned begin = blockIdx.x * Rows::kRowsPerCta;
  CUTLASS_OPS_UNROLL_BY(1)
  while (begin < unsigned(params.rows)) {
    int const row = int(begin) + in_cta;
    // The reductions are collective: threads of rows beyond the last take part, with no columns.
    bool const exists = Rows::kRowsPerCta == 1 || row < params.rows;
    RowCut const cut = cut_row<Rows>(row_of_dz(params, row), exists ? params.columns : 0);
    Share share;
    share.take(cut, thread, 0, cut.body, true);
    share.load(params, row);
    float sum = share.template weigh<Activation>(params.bias);
    sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
    share.store(row_of_dz(params, row) + share.column, sum, [&](int i, Fragment const& dz) {
      if (params.sums != nullptr) {
        slots[i * Rows::kCtaThreads] += dz;
      }
    });
    begin += gridDim.x * Rows::kRowsPerCta;
    if (Rows::kRowsPerCta == 1 && begin < unsigned(params.rows)) {
      __syncthreads();  // some may still read the parts of this sum where the next go
    }
  }
  if (params.sums != nullptr) {
    RowShare<Rows> share;
    share.take({0, params.columns, 0}, thread, 0, params.columns, false);
    std::int64_t const group = std::int64_t{blockIdx.x} * Rows::kRowsPerCta + in_cta;
    float* const first = params.sums + group * params.columns + share.column;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Share::kFragments; ++i) {
      if (share.holds(i)) {
        *reinterpret_cast<Fragment*>(first + i * Share::kStep) = slots[i * Rows::kCtaThreads];
      }
    }
  }
}

/// Rows of any length, one CTA each: the second time mostly from L2.
template <class Activation>
__global__ void __launch_bounds__(StreamingRows::kThreads) row_softmax_gradient_streaming(
    __grid_constant__ RowGradientParams const params) {
  constexpr int kThreads = StreamingRows::kThreads;
  int const row = int(blockIdx.x);
  float* const dz = row_of_dz(params, row);
  epilogue::Stage<epilogue::Bias, epilogue::MatrixSource> const h{params.bias, params.z};
  float sum = 0.0f;
  CUTLASS_OPS_UNROLL_BY(4)
  for (int column = threadIdx.x * 4; column < params.columns; column += kThreads * 4) {
    auto const g = params.g.template load<4>(row, column);
    auto const y = params.y.template load<4>(row, column);
    sum += (g[0] * y[0] + g[1] * y[1]) + (g[2] * y[2] + g[3] * y[3]);  // beyond the row 0
  }
  sum = reduce_threads<epilogue::SumMonoid, kThreads>(sum);
  CUTLASS_OPS_UNROLL_BY(1)
  for (int column = threadIdx.x * 4; column < params.columns; column += kThreads * 4) {
    auto const g = params.g.template load<4>(row, column);
    auto const y = params.y.template load<4>(row, column);
    auto d = epilogue::map(h.template load<4>(row, column),
                           [](float x) { return Activation::derivative(x); });
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < 4; ++j) {
      d[j] = weighted_rest(d[j] * y[j], g[j], sum);
    }
    epilogue::store_columns<4>(dz + column, d, params.columns - column, params.vectorized);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
