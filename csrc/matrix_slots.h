// How a row is cut into segments for kernel::matrix_epilogue: shared by the plan, which sizes the
// workspace, and the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cutlass_ops/ceil_div.h"

namespace cutlass_ops {

struct MatrixSlots {
  static constexpr int kOfACta = 8;  ///< the warps of one

  int slots;         ///< segments of a row
  int slot_columns;  ///< output columns of a segment, a multiple of 4

  /// Whether the segments of a row lie in one CTA, which can combine them.
  bool together() const { return kOfACta % slots == 0; }
};

inline MatrixSlots matrix_slots(int rows, int output_columns, int fragment_width) {
  constexpr std::int64_t kWarps = 4096;  // fills 132 SMs with about 31 warps each
  std::int64_t const shortest = 32 * std::int64_t{fragment_width};
  std::int64_t const most = std::max<std::int64_t>(1, ceil_div(output_columns, shortest));
  std::int64_t wanted = std::clamp<std::int64_t>(kWarps / std::max(rows, 1), 1, most);
  while (wanted < MatrixSlots::kOfACta && MatrixSlots::kOfACta % wanted != 0) {
    ++wanted;  // some may be left without columns
  }
  std::int64_t const columns = ceil_div(ceil_div(output_columns, wanted), 4) * 4;
  return {int(wanted), int(columns)};
}

/// Floats of workspace: the partials of a row reduction that needs more than one segment.
inline std::int64_t matrix_workspace(int rows, int output_columns, int fragment_width,
                                     bool reduces) {
  int const slots = matrix_slots(rows, output_columns, fragment_width).slots;
  return reduces && slots > 1 ? std::int64_t{rows} * slots : 0;
}

}  // namespace cutlass_ops
