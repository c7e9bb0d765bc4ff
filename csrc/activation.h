// Activations by their names.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

#include "row_kernels.h"

namespace cutlass_ops {

inline Activation activation_of(std::string const& name) {
  if (name == "identity") {
    return Activation::kIdentity;
  }
  if (name == "gelu") {
    return Activation::kGelu;
  }
  STD_TORCH_CHECK(name == "gelu_tanh", "no activation named '", name, "'");
  return Activation::kGeluTanh;
}

}  // namespace cutlass_ops
