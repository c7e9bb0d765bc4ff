// The registered descriptions: name -> launchers. An instantiation adds itself; nothing else
// changes.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/status.h"
#include "plan.h"

namespace cutlass_ops {

/// What the host needs to know of a description before it runs.
struct EpilogueShape {
  int window;    ///< columns of the linear per output column
  bool reduces;  ///< the output is one number per row
  int fragment_width;
  int param_count;  ///< numbers that the description takes
};

struct LinearCall {
  gemm::Problem problem;
  epilogue::Arguments arguments;
  Plan plan;
  float* workspace;
  float* out;
  cudaStream_t stream;
  /// For the kernels that take halves. Those of the weight may be there before the call; there are
  /// none of x where the kernel splits it itself, and leaves scales for every share of k.
  gemm::Fp16Pairs x_pairs;
  gemm::Fp16Pairs weight_pairs;
  gemm::Fp16Scale* x_scales;
  int* column_flags;  ///< of each column tile: whether it has rows of the weight without halves
};

struct MatrixCall {
  epilogue::MatrixSource source;
  int rows;
  epilogue::Arguments arguments;
  float* workspace;
  float* out;
  cudaStream_t stream;
};

struct Epilogue {
  char const* name;
  EpilogueShape (*shape)(epilogue::Arguments const&, int columns);
  Status (*run_gemm)(LinearCall const&);    ///< the GEMM with the epilogue in it (plan.direct)
  Status (*run_matrix)(MatrixCall const&);  ///< the epilogue alone
  Status (*refine)(LinearCall const&);      ///< what folding and halves do to infinities, repaired
};

/// nullptr where no description has that name, or where several claim it.
Epilogue const* find_epilogue(std::string const& name);

/// All names, sorted.
std::vector<std::string> epilogue_names();

/// Registers a description when the library is loaded. Exported: a library of somebody else's,
/// built against this one, adds its own descriptions (examples/custom_epilogue.py).
struct __attribute__((visibility("default"))) Registration {
  explicit Registration(Epilogue const& epilogue);
};

}  // namespace cutlass_ops
