// How a row is cut into segments for kernel::matrix_epilogue: shared by the plan, which sizes the
// workspace, and the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cutlass_ops/ceil_div.h"

namespace cutlass_ops {

struct MatrixSlots {
  int slots;         ///< segments of a row
  int slot_columns;  ///< output columns of a segment, a multiple of 4
};

/// A reduction cuts rows no further than it must: the segments take another launch to combine.
inline MatrixSlots matrix_slots(int rows, int output_columns, int fragment_width, bool reduces) {
  // 4096 fill 132 SMs with about 31 warps each; 1024 read from L2 about as fast.
  std::int64_t const warps = reduces ? 1024 : 4096;
  std::int64_t const shortest = 32 * std::int64_t{fragment_width};
  std::int64_t const most = std::max<std::int64_t>(1, ceil_div(output_columns, shortest));
  std::int64_t const wanted = std::clamp<std::int64_t>(warps / std::max(rows, 1), 1, most);
  std::int64_t const columns = ceil_div(ceil_div(output_columns, wanted), 4) * 4;
  std::int64_t const slots =
      columns == 0 ? 1 : std::max<std::int64_t>(1, ceil_div(output_columns, columns));
  return {int(slots), int(columns)};
}

/// Floats of workspace: the partials of a row reduction that needs more than one segment.
inline std::int64_t matrix_workspace(int rows, int output_columns, int fragment_width,
                                     bool reduces) {
  int const slots = matrix_slots(rows, output_columns, fragment_width, reduces).slots;
  return reduces && slots > 1 ? std::int64_t{rows} * slots : 0;
}

}  // namespace cutlass_ops
