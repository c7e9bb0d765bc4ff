// Division that rounds up.
#pragma once

#include <cstdint>

namespace cutlass_ops {

/// In 64 bits, so that a + b - 1 cannot overflow for the 32-bit sizes that it is used on.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace cutlass_ops
