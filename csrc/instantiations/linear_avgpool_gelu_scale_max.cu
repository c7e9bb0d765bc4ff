#include "cutlass_ops/epilogue/avg_pool.h"
#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/row_max.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/scale.h"
#include "instantiate.h"

using namespace cutlass_ops::epilogue;

CUTLASS_OPS_REGISTER_EPILOGUE("avgpool_gelu_scale_max",
                              Description<Chain<Bias, AvgPool, Gelu, Scale>, RowReduce<MaxMonoid>>)
