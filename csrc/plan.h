// Choice of kernel and split for one linear layer: a cost model, no measurement at run time.
#pragma once

#include <cstdint>
#include <string>

namespace cutlass_ops {

struct Epilogue;

/// How a call runs. Plain numbers, so that it crosses the binding as a list.
struct Plan {
  int kernel = 0;      ///< KernelIndex
  int splits = 1;      ///< shares of k
  bool direct = true;  ///< the epilogue runs in the GEMM; otherwise partials go through memory
  std::int64_t workspace = 0;    ///< floats
  std::int64_t nanoseconds = 0;  ///< estimate on the GPU asked about
};

/// What the plan depends on. `window` is the number of columns per output column, `reduces` tells a
/// row reduction.
struct PlanRequest {
  int m, n, k;
  int window;
  bool reduces;
  int fragment_width;
  int sm_count;
  int folded;  ///< rows of the layer's weight in each row of this one, a mean; 1 where nothing was
               ///< folded
};

/// The cheapest plan.
Plan choose_plan(PlanRequest const& request);

/// A plan for the given kernel and split; `possible` tells whether it can run at all.
Plan make_plan(PlanRequest const& request, int kernel, int splits, bool* possible);

/// Whether folding W for windows of `kernel_size` and a GEMM on the result beats the pooled
/// epilogue on all of W.
bool choose_folding(int m, int n, int k, int kernel_size, int sm_count);

/// One line for people.
std::string describe(Plan const& plan);

}  // namespace cutlass_ops
