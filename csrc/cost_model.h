// What a plan takes on an H200, estimated.
#pragma once

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "kernel_table.h"
#include "plan.h"

namespace cutlass_ops {

/// CTAs that run at the same time.
inline std::int64_t resident_ctas(KernelInfo const& kernel, PlanRequest const& request) {
  return std::int64_t{request.gpu.sm_count} * kernel.ctas_per_sm;
}

inline std::int64_t tiles_of(KernelInfo const& kernel, PlanRequest const& request) {
  return ceil_div(request.m, kernel.tile_m) * ceil_div(request.n, kernel.tile_n);
}

/// Nanoseconds of the kernel with everything that the plan wants before and behind it. Of the plan
/// it looks at the splits, and whether the epilogue runs in the GEMM.
double estimate_ns(KernelInfo const& kernel, PlanRequest const& request, Plan const& plan);

/// Of folding W [n, k] into `windows` means, beside a plan for these. `at_once`: they are split
/// into halves in the same pass, which the plan counts.
double estimate_fold_ns(int n, int windows, int k, Gpu gpu, bool at_once);

}  // namespace cutlass_ops
