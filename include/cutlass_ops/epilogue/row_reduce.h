// Sink: reduces each row with a monoid. A row is cut into slots (the column tiles of a GEMM, or
// segments of a matrix); each slot leaves one partial, and `kernel::combine_rows` combines the
// partials of a row in the order of the slots. No atomics: the result does not depend on which part
// of the machine ran first.
#pragma once

#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/epilogue/warp_reduce.h"

namespace cutlass_ops {
namespace epilogue {

template <class Monoid_>
struct RowReduce {
  using Monoid = Monoid_;
  static constexpr bool kReduces = true;

  float* partials;  ///< [rows, slots]
  int slots;
  int first_row = 0;  ///< of the partials

  struct State {
    float value = Monoid::identity();
  };

  static RowReduce make(float* partials, int /*columns*/, int slots) { return {partials, slots}; }

  CUTLASS_OPS_HOST_DEVICE RowReduce at_split(int) const { return *this; }

  /// The same with partials elsewhere, of the rows from `row` on.
  CUTLASS_OPS_HOST_DEVICE RowReduce at(float* place, int row) const { return {place, slots, row}; }

  /// Takes the first `valid` columns of `y` into the thread's state.
  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE void visit(State& state, Fragment<kWidth> const& y, int, int,
                                     int valid) const {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      if (i < valid) {
        state.value = Monoid::combine(state.value, y[i]);
      }
    }
  }

#if defined(__CUDACC__)
  /// Called by all lanes of the warp, kLanes of which visited the slot.
  template <int kLanes>
  CUTLASS_OPS_DEVICE void finish(State const& state, int row, int slot, int lane) const {
    float const value = warp_reduce<Monoid, kLanes>(state.value);
    if (lane == 0) {
      partials[static_cast<std::int64_t>(row - first_row) * slots + slot] = value;
    }
  }
#endif
};

}  // namespace epilogue
}  // namespace cutlass_ops
