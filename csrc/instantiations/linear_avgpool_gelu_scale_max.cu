#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/pooled_maximum.h"
#include "instantiate.h"

using namespace cutlass_ops::epilogue;

CUTLASS_OPS_REGISTER_EPILOGUE("avgpool_gelu_scale_max", PooledMaximum<Gelu>)
