// Choice of kernel and split for one linear layer: a cost model, no measurement at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cutlass_ops {

/// How a call runs. Plain numbers, which cross the binding as a list in this order. The first two
/// are the choice, the rest follows from them.
struct Plan {
  int kernel = 0;                ///< KernelIndex
  int splits = 1;                ///< shares of k
  std::int64_t workspace = 0;    ///< floats
  std::int64_t nanoseconds = 0;  ///< estimate on the GPU asked about
  bool direct = true;  ///< the epilogue runs in the GEMM; otherwise partials go through memory
  int ctas = 0;        ///< of a kernel whose CTAs take several items; does not cross the binding
  /// Of the workspace, at its end: flags and halves. Nor does this cross the binding.
  std::int64_t pairs_elements = 0;
};

/// What a plan depends on of the GPU.
struct Gpu {
  int sm_count;    ///< at least 1; the estimate depends on it, and the grid of stream-K
  int capability;  ///< 10 * major + minor
};

/// What the plan depends on.
struct PlanRequest {
  int m, n, k;
  int window;          ///< columns of the linear per output column
  bool reduces;        ///< the output is one number per row
  int fragment_width;  ///< output columns that a thread evaluates at a time
  Gpu gpu;
  int folded;      ///< each row of the weight is the mean of so many rows of the layer's
  bool fp16x3;     ///< the tensor cores may be used
  bool packed;     ///< the halves of the weight are there
  bool x_aligned;  ///< TMA can read the rows of x (tma_rows in operands.py)
};

/// The plan that is estimated to be the fastest; none where no kernel can run.
std::optional<Plan> choose_plan(PlanRequest const& request);

/// Whether a kernel can run on the GPU.
bool runs_on(int kernel, Gpu gpu);

/// The plan for this kernel and number of splits, whatever the GPU's capability; none where it
/// cannot run the problem.
std::optional<Plan> make_plan(PlanRequest const& request, int kernel, int splits);

/// Whether folding W for windows of `kernel_size` and a GEMM on the result beats the pooled
/// epilogue on all of W.
bool choose_folding(int m, int n, int k, int kernel_size, Gpu gpu, bool fp16x3, bool x_aligned);

/// One line for people.
std::string describe(Plan const& plan);

}  // namespace cutlass_ops
