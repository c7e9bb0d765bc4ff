// Fragment: the unit that every step and sink works on.
#pragma once

#if defined(__CUDACC__)
#define CUTLASS_OPS_HOST_DEVICE __host__ __device__ __forceinline__
#define CUTLASS_OPS_DEVICE __device__ __forceinline__
#else
#define CUTLASS_OPS_HOST_DEVICE inline
#endif

// In the device pass alone: the host compiler does not know the pragma.
#if defined(__CUDA_ARCH__)
#define CUTLASS_OPS_PRAGMA(text) _Pragma(#text)
#define CUTLASS_OPS_UNROLL CUTLASS_OPS_PRAGMA(unroll)
#define CUTLASS_OPS_UNROLL_BY(count) CUTLASS_OPS_PRAGMA(unroll count)
#else
#define CUTLASS_OPS_UNROLL
#define CUTLASS_OPS_UNROLL_BY(count)
#endif

namespace cutlass_ops {
namespace epilogue {

/// `kWidth` consecutive columns of one row. Aligned so that a fragment of four moves as one 128-bit
/// access.
template <int kWidth_>
struct alignas(kWidth_ % 4 == 0 ? 16 : 4) Fragment {
  static constexpr int kWidth = kWidth_;
  float values[kWidth];

  CUTLASS_OPS_HOST_DEVICE float& operator[](int i) { return values[i]; }
  CUTLASS_OPS_HOST_DEVICE float operator[](int i) const { return values[i]; }

  CUTLASS_OPS_HOST_DEVICE Fragment& operator+=(Fragment const& other) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      values[i] += other.values[i];
    }
    return *this;
  }
};

/// Reads `kWidth` columns at `pointer`, which holds `valid` of them; the rest are zero.
/// `vectorized` promises that `pointer` is 16-byte aligned whenever all four columns of a fragment
/// of four are valid.
template <int kWidth>
CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> load_columns(float const* pointer, int valid,
                                                      bool vectorized) {
  if (kWidth % 4 == 0 && vectorized && valid >= kWidth) {
    return *reinterpret_cast<Fragment<kWidth> const*>(pointer);
  }
  Fragment<kWidth> fragment;
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    fragment[i] = i < valid ? pointer[i] : 0.0f;
  }
  return fragment;
}

/// Writes the first `valid` columns of `fragment`; the twin of load_columns.
template <int kWidth>
CUTLASS_OPS_HOST_DEVICE void store_columns(float* pointer, Fragment<kWidth> const& fragment,
                                           int valid, bool vectorized) {
  if (kWidth % 4 == 0 && vectorized && valid >= kWidth) {
    *reinterpret_cast<Fragment<kWidth>*>(pointer) = fragment;
    return;
  }
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    if (i < valid) {
      pointer[i] = fragment[i];
    }
  }
}

/// Each column through `function`: the whole of an elementwise step but for its formula.
template <int kWidth, class Function>
CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> map(Fragment<kWidth> z, Function function) {
  CUTLASS_OPS_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    z[i] = function(z[i]);
  }
  return z;
}

}  // namespace epilogue
}  // namespace cutlass_ops
