// A CTA on the host: one thread of the operating system for each of its threads, so that kernels
// that meet at barriers run as they are. What kernels take for granted of CUDA, as far as those
// under test use it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#define CUTLASS_OPS_DEVICE inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct Index {
  int x;
};
static thread_local Index threadIdx;
static Index blockIdx;
static Index gridDim;

struct alignas(16) float4 {
  float x, y, z, w;
};

using std::min;

namespace host_cta {

constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / 32;
static pthread_barrier_t barrier;
static pthread_barrier_t warp_barriers[kMostWarps];
static std::atomic<int> any;
static double lanes[kMostThreads];  ///< what they tell one another: a vote, or any number

inline void meet_warp() { pthread_barrier_wait(&warp_barriers[threadIdx.x / 32]); }

/// Every CTA of a grid, one after the other.
template <class Kernel>
void run_grid(int ctas, int threads, Kernel kernel) {
  gridDim.x = ctas;
  pthread_barrier_init(&barrier, nullptr, unsigned(threads));
  for (int warp = 0; warp < threads / 32; ++warp) {
    pthread_barrier_init(&warp_barriers[warp], nullptr, 32);
  }
  for (blockIdx.x = 0; blockIdx.x < ctas; ++blockIdx.x) {
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        threadIdx.x = thread;
        kernel();
      });
    }
    for (std::thread& one : all) {
      one.join();
    }
  }
  pthread_barrier_destroy(&barrier);
  for (int warp = 0; warp < threads / 32; ++warp) {
    pthread_barrier_destroy(&warp_barriers[warp]);
  }
}

}  // namespace host_cta

inline void __syncthreads() { pthread_barrier_wait(&host_cta::barrier); }

inline int __syncthreads_or(int predicate) {
  __syncthreads();
  host_cta::any = 0;
  __syncthreads();
  if (predicate != 0) {
    host_cta::any = 1;
  }
  __syncthreads();
  return host_cta::any;
}

inline unsigned __ballot_sync(unsigned, int predicate) {
  host_cta::lanes[threadIdx.x] = predicate;
  host_cta::meet_warp();
  unsigned mask = 0;
  for (int lane = 0; lane < 32; ++lane) {
    mask |= host_cta::lanes[threadIdx.x / 32 * 32 + lane] != 0 ? 1u << lane : 0u;
  }
  host_cta::meet_warp();
  return mask;
}

/// Of numbers that a double holds: int, float, double.
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  host_cta::lanes[threadIdx.x] = double(value);
  host_cta::meet_warp();
  T const other = T(host_cta::lanes[threadIdx.x ^ mask]);
  host_cta::meet_warp();
  return other;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T __ldcs(T const* place) {
  return *place;
}
