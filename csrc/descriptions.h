// What ops and queries both ask of a description and of a plan: names, numbers and lists, checked.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "operands.h"
#include "plan.h"
#include "registry.h"

namespace cutlass_ops {

inline void check(Status const& status) {
  STD_TORCH_CHECK(status.ok(), status.what, ": ", cudaGetErrorString(status.error));
}

/// Of the current device.
inline int multiprocessors() {
  int device = 0;
  int count = 0;
  check({cudaGetDevice(&device), "cudaGetDevice"});
  check(
      {cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors"});
  return count;
}

inline Epilogue const& epilogue_of(std::string const& name) {
  Epilogue const* const epilogue = find_epilogue(name);
  STD_TORCH_CHECK(epilogue != nullptr, "no epilogue named '", name,
                  "' is registered, or more than one is");
  return *epilogue;
}

inline epilogue::Arguments arguments_of(float const* bias, std::vector<double> const& params) {
  return {bias, params.data(), static_cast<int>(params.size())};
}

/// The description's facts for a linear of `columns` columns; the numbers must be those that it
/// takes.
inline EpilogueShape shape_of(Epilogue const& epilogue, std::vector<double> const& params,
                              int columns) {
  EpilogueShape const shape = epilogue.shape(arguments_of(nullptr, params), columns);
  STD_TORCH_CHECK(shape.param_count == static_cast<int>(params.size()), "epilogue '", epilogue.name,
                  "' takes ", shape.param_count, " params, not ", params.size());
  STD_TORCH_CHECK(shape.window >= 1, "epilogue '", epilogue.name, "' has a window of ",
                  shape.window, " columns");
  return shape;
}

inline int kernel_of(std::int64_t index) {
  STD_TORCH_CHECK(index >= 0 && index < kKernelCount, "no kernel has the index ", index);
  return static_cast<int>(index);
}

inline PlanRequest request_of(EpilogueShape const& shape, std::int64_t m, std::int64_t n,
                              std::int64_t k, Gpu gpu, std::int64_t folded, bool fp16x3,
                              bool packed, bool x_aligned) {
  STD_TORCH_CHECK(folded >= 1, "folded must be positive, got ", folded);
  return {extent(m), extent(n),      extent(k), shape.window, shape.reduces, shape.fragment_width,
          gpu,       extent(folded), fp16x3,    packed,       x_aligned};
}

}  // namespace cutlass_ops
