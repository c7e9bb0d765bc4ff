// Launching a kernel in clusters of CTAs, which need compute capability 9.0.
#pragma once

#include <climits>
#include <cstdint>

#include "cutlass_ops/status.h"

namespace cutlass_ops {

/// Whether the code of `kernel` that runs on the current device was compiled for clusters. The
/// device's own capability does not tell: a newer GPU than the build knows runs PTX of an older
/// one.
template <class... Parameters>
bool has_clusters(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

/// Launches `kernel(arguments...)` on `clusters` clusters of `cluster` CTAs, of a one-dimensional
/// grid. No work is no launch.
template <class... Parameters, class... Arguments>
Status launch_clusters(char const* what, void (*kernel)(Parameters...), std::int64_t clusters,
                       int cluster, int threads, cudaStream_t stream,
                       Arguments const&... arguments) {
  if (clusters == 0) {
    return {};
  }
  if (clusters * cluster > INT_MAX) {
    return {cudaErrorInvalidConfiguration, what};  // the limit of grid.x
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  return {cudaGetLastError(), what};
}

}  // namespace cutlass_ops
