// What this binary was built from; setup.py passes the lists.
#pragma once

#if !defined(CUTLASS_OPS_ARCHITECTURES) || !defined(CUTLASS_OPS_CUTLASS_VERSION) || !defined(CUTLASS_OPS_NVCC_VERSION)
#error "setup.py defines the versions and architectures of the build"
#endif

namespace cutlass_ops {

inline constexpr char const* kCutlassVersion = CUTLASS_OPS_CUTLASS_VERSION;
inline constexpr char const* kNvccVersion = CUTLASS_OPS_NVCC_VERSION;
inline constexpr char const* kArchitectures[] = {CUTLASS_OPS_ARCHITECTURES};

}  // namespace cutlass_ops
