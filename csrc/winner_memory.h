// Where the forward of a training step keeps what: for the query that sizes its memory, and the op
// that lays it out.
#pragma once

#include <cstdint>

#include "pair_memory.h"

namespace cutlass_ops {

/// The linear part, of means of W, [rows, windows]; the means of the bias; then the workspace.
struct WinnerMemory {
  std::int64_t bias, workspace, elements;  ///< where they begin, on a line of L2; and the end

  WinnerMemory(std::int64_t rows, std::int64_t windows, std::int64_t workspace_elements)
      : bias(whole_lines(rows * windows)),
        workspace(bias + whole_lines(windows)),
        elements(workspace + workspace_elements) {}
};

}  // namespace cutlass_ops
