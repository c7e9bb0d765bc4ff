// The current CUDA stream of PyTorch, without linking against libtorch_cuda.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

namespace cutlass_ops {

/// libtorch_cuda.so is looked up among the loaded libraries at the first call, so that one binary
/// loads beside CPU-only PyTorch too: a strong reference would make the import fail there, a weak
/// one stays null even beside CUDA PyTorch.
inline cudaStream_t current_stream(std::int32_t device) {
  using Getter = std::int32_t (*)(std::int32_t, void**);
  static Getter const getter = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Getter>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  void* stream = nullptr;
  if (getter == nullptr || getter(device, &stream) != 0) {
    throw std::runtime_error("cutlass_ops: PyTorch offers no current CUDA stream");
  }
  return static_cast<cudaStream_t>(stream);
}

}  // namespace cutlass_ops
