// Launching a kernel in clusters of CTAs, which need compute capability 9.0.
#pragma once

#include <cstdint>

#include "cutlass_ops/launch.h"

namespace cutlass_ops {

/// Launches `kernel(arguments...)` on `clusters` clusters of `cluster` CTAs, of a one-dimensional
/// grid. No work is no launch. The kernel must have code for clusters (has_hopper_code).
template <class... Parameters, class... Arguments>
Status launch_clusters(char const* what, void (*kernel)(Parameters...), std::int64_t clusters,
                       int cluster, int threads, cudaStream_t stream,
                       Arguments const&... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  return launch_with_attribute(what, kernel, clusters * cluster, threads, 0, stream, &attribute,
                               arguments...);
}

}  // namespace cutlass_ops
