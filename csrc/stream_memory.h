// Where in the workspace the stream-K kernel exchanges pieces of tiles: for the plan, which sizes
// it, and the launchers, which lay it out.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace cutlass_ops {

/// Elements before it: the slots of a reduction of `rows` rows, up to the next 16 bytes.
inline std::int64_t stream_exchange_offset(bool reduces, int rows, std::int64_t slots) {
  return reduces && slots > 1 ? (rows * slots + 3) / 4 * 4 : 0;
}

/// Elements of it: a tile and a flag for every CTA, and the count of those that have started.
inline std::int64_t stream_exchange_elements(KernelInfo const& kernel, int ctas) {
  return std::int64_t{ctas} * (kernel.tile_m * kernel.tile_n + 1) + 1;
}

}  // namespace cutlass_ops
