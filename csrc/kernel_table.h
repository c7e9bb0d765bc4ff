// The GEMM kernels that a plan can choose from. The order is the index in a plan.
#pragma once

namespace cutlass_ops {

enum class KernelFamily { kSkinny, kSimt, kTransposing, kStreamK, kFp16x3, kFp16x3Narrow };

struct KernelInfo {
  char const* name;
  KernelFamily family;
  int tile_m;
  int tile_n;
  int tile_k;       ///< shares of k are multiples of it
  int warps;        ///< of a CTA
  int ctas_per_sm;  ///< that fit
  double tflops;    ///< 2 m n k / time, on a full H200 (132 SMs); the ratios carry over
  double wave_ns;   ///< what a wave of CTAs takes besides: first loads, epilogue
};

enum KernelIndex {
  kSkinny,
  kSimt64x64,
  kSimt128x64,
  kSimt128x128,
  kSimt128x256,
  kTransposing128x128,
  kSliced128x128,
  kStreamK128x128,
  kFp16x3,
  kFp16x3Narrow,
  kKernelCount
};

// Rates fitted to the times of docs/performance.md over a dozen shapes.
inline constexpr KernelInfo kKernels[kKernelCount] = {
    {"skinny", KernelFamily::kSkinny, 16, 32, 4, 8, 2, 22.0, 3000.0},
    {"simt_64x64x8", KernelFamily::kSimt, 64, 64, 8, 4, 4, 35.5, 3000.0},
    {"simt_128x64x8", KernelFamily::kSimt, 128, 64, 8, 4, 3, 44.0, 3000.0},
    {"simt_128x128x8", KernelFamily::kSimt, 128, 128, 8, 8, 2, 46.5, 3000.0},
    {"simt_128x256x8", KernelFamily::kSimt, 128, 256, 8, 8, 1, 49.2, 3000.0},
    {"simt_128x128x32", KernelFamily::kTransposing, 128, 128, 32, 8, 2, 55.8, 6000.0},
    {"sliced_k_128x128x32", KernelFamily::kTransposing, 128, 128, 32, 16, 1, 55.8, 8000.0},
    {"stream_k_128x128x32", KernelFamily::kStreamK, 128, 128, 32, 16, 1, 55.8, 6000.0},
    {"fp16x3_128x128x64", KernelFamily::kFp16x3, 128, 128, 64, 12, 1, 262.0, 2000.0},
    {"fp16x3_64x64x64", KernelFamily::kFp16x3Narrow, 64, 64, 64, 8, 2, 132.0, 1500.0},
};

/// Whether a kernel runs on the tensor cores, where W comes as halves.
constexpr bool takes_halves(KernelInfo const& kernel) {
  return kernel.family == KernelFamily::kFp16x3 || kernel.family == KernelFamily::kFp16x3Narrow;
}
constexpr bool takes_halves(int kernel) { return takes_halves(kKernels[kernel]); }

}  // namespace cutlass_ops
