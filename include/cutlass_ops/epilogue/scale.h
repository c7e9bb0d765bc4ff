// Step: scale * z.
#pragma once

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

struct Scale {
  float scale;

  static Scale make(Reader& reader, int) { return {static_cast<float>(reader.next())}; }

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> operator()(Fragment<kWidth> z, int, int) const {
    return map(z, [this](float x) { return scale * x; });
  }
};

}  // namespace epilogue
}  // namespace cutlass_ops
