// What a launcher returns: no exception and no torch type crosses this line.
#pragma once

#include <cuda_runtime.h>

namespace cutlass_ops {

struct Status {
  cudaError_t error = cudaSuccess;
  char const* what = "";  ///< the kernel or the check that failed

  bool ok() const { return error == cudaSuccess; }
};

}  // namespace cutlass_ops
