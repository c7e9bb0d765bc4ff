// The GEMM kernels that a plan can choose from. The order is the index in a plan.
#pragma once

namespace cutlass_ops {

enum class KernelFamily { kSkinny, kSimt };

struct KernelInfo {
  char const* name;
  KernelFamily family;
  int tile_m;
  int tile_n;
  int warps;        ///< of a CTA
  int ctas_per_sm;  ///< that fit
  double tflops;    ///< on a full H200 (132 SMs); the ratios carry over to other GPUs
};

enum KernelIndex { kSkinny, kSimt64x64, kSimt128x64, kSimt128x128, kSimt128x256, kKernelCount };

// Rates fitted to the times of docs/performance.md over a dozen shapes.
inline constexpr KernelInfo kKernels[kKernelCount] = {
    {"skinny", KernelFamily::kSkinny, 16, 32, 8, 2, 22.0},
    {"simt_64x64x8", KernelFamily::kSimt, 64, 64, 4, 4, 35.5},
    {"simt_128x64x8", KernelFamily::kSimt, 128, 64, 4, 3, 44.0},
    {"simt_128x128x8", KernelFamily::kSimt, 128, 128, 8, 2, 46.5},
    {"simt_128x256x8", KernelFamily::kSimt, 128, 256, 8, 1, 49.2},
};

}  // namespace cutlass_ops
