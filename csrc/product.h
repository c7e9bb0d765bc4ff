// Launchers of the products of backward, whose operands are not K-major.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cutlass_ops/status.h"

namespace cutlass_ops {

/// out[m, n] = a b with b [k, n], and a [m, k] or, where it is transposed, [k, m]. Strides, in
/// elements, are those of the rows.
struct ProductCall {
  float const* a;
  std::int64_t a_stride;
  bool a_transposed;
  float const* b;
  std::int64_t b_stride;
  int m, n, k;
  int ctas;         ///< as many as there are SMs
  float* exchange;  ///< of stream_exchange_elements, 16-byte aligned
  float* out;       ///< contiguous
  cudaStream_t stream;

  /// Whether the kernels can: a tile at the least, and 128-bit loads.
  bool runs() const;
};

Status run_product(ProductCall const& call);

}  // namespace cutlass_ops
