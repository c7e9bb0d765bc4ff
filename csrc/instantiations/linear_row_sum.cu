#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "instantiate.h"

using namespace cutlass_ops::epilogue;

CUTLASS_OPS_REGISTER_EPILOGUE("row_sum", Description<Chain<Bias>, RowReduce<SumMonoid>>)
