// The description of op B: max over j of scale * activation(mean of a window of x Wᵀ + b).
#pragma once

#include "cutlass_ops/epilogue/avg_pool.h"
#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/row_max.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/scale.h"

namespace cutlass_ops {
namespace epilogue {

template <class Activation>
using PooledMaximum = Description<Chain<Bias, AvgPool, Activation, Scale>, RowReduce<MaxMonoid>>;

}  // namespace epilogue
}  // namespace cutlass_ops
