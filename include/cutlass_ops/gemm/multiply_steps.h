// Steps of the tensor cores: what a batch of products is made of.
#pragma once

#include "cute/tensor.hpp"

#include "cute/algorithm/gemm.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace gemm {

/// `accumulators` += steps [begin, begin + kSteps) of x and W, each of 16 columns of k.
template <int kSteps, class Mma, class X, class W, class Accumulators>
CUTLASS_OPS_DEVICE void multiply_steps(Mma& mma, X const& x, W const& w, int begin,
                                       Accumulators& accumulators) {
  CUTLASS_OPS_UNROLL
  for (int step = begin; step < begin + kSteps; ++step) {
    cute::gemm(mma, x(cute::_, cute::_, step), w(cute::_, cute::_, step), accumulators);
    mma.accumulate_ = cute::GMMA::ScaleOut::One;
  }
}

}  // namespace gemm
}  // namespace cutlass_ops
