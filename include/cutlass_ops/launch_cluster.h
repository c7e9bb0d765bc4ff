// Launching a kernel in clusters of CTAs, which need compute capability 9.0.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/launch.h"

namespace cutlass_ops {

inline cudaLaunchAttribute cluster_attribute(int cluster) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  return attribute;
}

/// Launches `kernel(arguments...)` on `clusters` clusters of `cluster` CTAs, of a one-dimensional
/// grid. No work is no launch. The kernel must have code for clusters (has_hopper_code).
template <class... Parameters, class... Arguments>
Status launch_clusters(char const* what, void (*kernel)(Parameters...), std::int64_t clusters,
                       int cluster, int threads, cudaStream_t stream,
                       Arguments const&... arguments) {
  cudaLaunchAttribute attribute = cluster_attribute(cluster);
  return launch_with_attributes(what, kernel, clusters * cluster, threads, 0, stream, &attribute, 1,
                                arguments...);
}

/// The same for a kernel that begins with wait_for_predecessor.
template <class... Parameters, class... Arguments>
Status launch_dependent_clusters(char const* what, void (*kernel)(Parameters...),
                                 std::int64_t clusters, int cluster, int threads,
                                 cudaStream_t stream, Arguments const&... arguments) {
  cudaLaunchAttribute attributes[] = {cluster_attribute(cluster), dependent_attribute()};
  return launch_with_attributes(what, kernel, clusters * cluster, threads, 0, stream, attributes, 2,
                                arguments...);
}

}  // namespace cutlass_ops
