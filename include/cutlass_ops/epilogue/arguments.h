// What a step is made from on the host: the operands of the linear layer and the numbers of the
// call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cutlass_ops {
namespace epilogue {

/// True where `pointer` can be read 128 bits at a time.
inline bool is_aligned(void const* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Host-side arguments of one call of a description.
struct Arguments {
  float const* bias = nullptr;     ///< [columns of the linear], contiguous, or nullptr for no bias
  double const* params = nullptr;  ///< the description's numbers, in the order of its steps
  int param_count = 0;
};

/// Hands out the numbers of `Arguments` one after another: each step takes what it needs in `make`.
class Reader {
 public:
  explicit Reader(Arguments const& arguments) : arguments_(arguments) {}

  float const* bias() const { return arguments_.bias; }

  /// The next number; 0 once the numbers are used up, which `consumed()` then exceeds.
  double next() {
    int const index = consumed_++;
    return index < arguments_.param_count ? arguments_.params[index] : 0.0;
  }

  int consumed() const { return consumed_; }

 private:
  Arguments const& arguments_;
  int consumed_ = 0;
};

}  // namespace epilogue
}  // namespace cutlass_ops
