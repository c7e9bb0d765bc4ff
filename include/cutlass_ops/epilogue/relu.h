// Step: max(z, 0), NaN kept as torch.relu keeps it.
#pragma once

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct Relu {
  static Relu make(Reader&, int) { return {}; }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [](float x) { return x < 0.0f ? 0.0f : x; });
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
