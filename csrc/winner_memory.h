// Where the forward and backward of a training step keep what: for the queries that size the
// memory, and the ops that lay it out.
#pragma once

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/kernel/winners.h"
#include "pair_memory.h"

namespace cutlass_ops {

/// That of forward: the linear part, of means of W, [rows, windows], which stays unused where its
/// partial matrices are read as they are; the means of the bias; then the workspace.
struct WinnerMemory {
  std::int64_t bias, workspace, elements;  ///< where they begin, on a line of L2; and the end

  WinnerMemory(std::int64_t rows, std::int64_t windows, std::int64_t workspace_elements)
      : bias(whole_lines(rows * windows)),
        workspace(bias + whole_lines(windows)),
        elements(workspace + workspace_elements) {}
};

/// That of the gradient of the weight: the sums of runs, on 16 bytes; then four numbers a row.
struct GradientMemory {
  std::int64_t terms, elements;

  GradientMemory(int rows, int columns)
      : terms(whole_lines(sums(rows) * columns)), elements(terms + std::int64_t{4} * rows) {}

 private:
  static std::int64_t sums(int rows) {
    int const slice_rows = kernel::RunConfig::slice_rows(rows);
    return ceil_div(rows, slice_rows) * kernel::RunConfig::sums_of(slice_rows);
  }
};

}  // namespace cutlass_ops
