// Where a call that folds keeps what: for the query that sizes its memory, and the op that lays it
// out.
#pragma once

#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "kernel_table.h"
#include "pair_memory.h"

namespace cutlass_ops {

/// Memory of a call that folds: the means of W, unless the kernel takes their halves, which lie in
/// the workspace, and of the bias; then the workspace.
struct FoldedMemory {
  std::int64_t bias, workspace, elements;  ///< where they begin, each 16-byte aligned; and the end

  FoldedMemory(std::int64_t windows, int k, int kernel, std::int64_t workspace_elements)
      : bias(takes_halves(kernel) ? 0 : ceil_div(windows * k, 4) * 4),
        workspace(whole_lines(bias + windows)),
        elements(workspace + workspace_elements) {}
};

}  // namespace cutlass_ops
