// Softmax over rows in the registers of a cluster of CTAs: rows too long for one SM, still read
// once and written once. Compute capability 9.0 brought clusters; built for an older one the kernel
// is empty, and must not be launched (has_hopper_code).
//
// Each CTA takes exponentials relative to the maximum of its own part, so that the CTAs exchange
// one pair of numbers each, once: exp(z - M) / S = exp(z - m) * (exp(m - M) / S).
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/cluster.h"
#include "cutlass_ops/kernel/row_softmax.h"

namespace cutlass_ops {
namespace kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// The maximum of each CTA's part and the sum of exponentials relative to it -> the factor for
/// those exponentials. The first cluster barrier, behind which every CTA has started, has been
/// arrived at.
template <int kCluster>
CUTLASS_OPS_DEVICE float cluster_scale(float largest, float sum, int rank) {
  __shared__ float2 parts[kCluster];
  cluster_wait();
  if (threadIdx.x < kCluster) {
    store_remote(&parts[rank], int(threadIdx.x), {largest, sum});
  }
  cluster_arrive();
  cluster_wait();
  float2 const part = parts[threadIdx.x % kCluster];  // a lane each
  float const row_largest = epilogue::warp_reduce<FloatMax, kCluster>(part.x);
  float const row_sum =
      epilogue::warp_reduce<epilogue::SumMonoid, kCluster>(part.y * expf(part.x - row_largest));
  return expf(largest - row_largest) / row_sum;
}
#endif

template <class Rows, class Chain>
__global__ void __launch_bounds__(Rows::kCtaThreads, Rows::kMinCtas) row_softmax_cluster(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(Rows::kCluster > 1 && Rows::kRowsPerCta == 1, "a cluster takes one row");
  cluster_arrive_relaxed();
  int const row = int(blockIdx.x) / Rows::kCluster;
  int const rank = cluster_rank();
  RowCut const cut = cut_row<Rows>(row_of_out(params, row), params.columns);
  int const part = cut.part(Rows::kCluster);
  RowShare<Rows> share;
  share.take(cut, int(threadIdx.x), rank * part, part, rank == 0);
  share.load(params.source, params.bias, row);
  float largest = share.activate(params.chain, row);
  largest = reduce_threads<FloatMax, Rows::kThreads>(largest);
  // A part without columns, or of -inf alone, in a row that has others: 0, and not NaN.
  float sum = share.exponentiate(largest == -INFINITY ? 0.0f : largest);
  sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
  float const scale = cluster_scale<Rows::kCluster>(largest, sum, rank);
  share.store(row_of_out(params, row) + share.column, scale);
#endif
}

}  // namespace kernel
}  // namespace cutlass_ops
