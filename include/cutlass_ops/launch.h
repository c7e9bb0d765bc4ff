// Launching a kernel, with its errors checked.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {

/// Launches `kernel(arguments...)` on `ctas` CTAs of a one-dimensional grid, with so many bytes of
/// dynamic shared memory and so many attributes. No work is no launch.
template <class... Parameters, class... Arguments>
Status launch_with_attributes(char const* what, void (*kernel)(Parameters...), std::int64_t ctas,
                              int threads, std::size_t shared_bytes, cudaStream_t stream,
                              cudaLaunchAttribute* attributes, int count,
                              Arguments const&... arguments) {
  if (ctas == 0) {
    return {};
  }
  if (ctas > INT_MAX) {
    return {cudaErrorInvalidConfiguration, what};  // the limit of grid.x
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  return {cudaGetLastError(), what};
}

template <class... Parameters, class... Arguments>
Status launch_with_shared(char const* what, void (*kernel)(Parameters...), std::int64_t ctas,
                          int threads, std::size_t shared_bytes, cudaStream_t stream,
                          Arguments const&... arguments) {
  return launch_with_attributes(what, kernel, ctas, threads, shared_bytes, stream, nullptr, 0,
                                arguments...);
}

template <class... Parameters, class... Arguments>
Status launch(char const* what, void (*kernel)(Parameters...), std::int64_t ctas, int threads,
              cudaStream_t stream, Arguments const&... arguments) {
  return launch_with_shared(what, kernel, ctas, threads, 0, stream, arguments...);
}

/// CTAs for `items` at `per_cta` each in a grid-stride loop: enough to fill any GPU many times
/// over.
inline std::int64_t grid_stride_ctas(std::int64_t items, int per_cta) {
  constexpr std::int64_t kMost = 1 << 20;
  std::int64_t const ctas = ceil_div(items, per_cta);
  return ctas < kMost ? ctas : kMost;
}

}  // namespace cutlass_ops
