#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/relu.h"
#include "cutlass_ops/epilogue/store.h"
#include "instantiate.h"

using namespace cutlass_ops::epilogue;

CUTLASS_OPS_REGISTER_EPILOGUE("relu", Description<Chain<Bias, Relu>, Store>)
