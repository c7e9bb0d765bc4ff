// Zeros for a few words.
#pragma once

#include "cutlass_ops/dependent_launch.h"

namespace cutlass_ops {
namespace kernel {

/// A kernel, behind which the next one is ready to start, where a memset would be waited for.
template <int kThreads>
__global__ void clear_words(int* words, int count) {
  wait_for_predecessor();
  release_successor();
  if (int const word = blockIdx.x * kThreads + threadIdx.x; word < count) {
    words[word] = 0;
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
