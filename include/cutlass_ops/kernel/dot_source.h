// Pre-activations one by one, for the few that a GEMM gets wrong.
#pragma once

#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/epilogue/warp_reduce.h"
#include "cutlass_ops/gemm/problem.h"

namespace cutlass_ops {
namespace kernel {

/// Source that computes a pre-activation when it is asked for one: a dot product per column, by the
/// whole warp. Every lane gets the result.
struct DotSource {
  gemm::Problem problem;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int row, int column) const {
    int const lane = threadIdx.x % 32;
    float const* const first_x = problem.x + row * problem.x_stride + lane * problem.x_step;
    epilogue::Fragment<kWidth> z;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      float sum = 0.0f;
      if (column + i < problem.n) {  // the same in all lanes
        float const* x = first_x;
        float const* weight =
            problem.weight + (column + i) * problem.weight_stride + lane * problem.weight_step;
        for (int k = lane; k < problem.k; k += 32) {
          sum = fmaf(*x, *weight, sum);
          x += 32 * problem.x_step;
          weight += 32 * problem.weight_step;
        }
      }
      z[i] = epilogue::warp_reduce<epilogue::SumMonoid>(sum);
    }
    return z;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
