// What one thread holds of a row of the softmax in shared memory, behind its share in registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/kernel/row_share.h"

namespace cutlass_ops {
namespace kernel {

/// kCount floats to this thread's own place in shared memory, some time before wait_for_copies.
template <int kCount>
CUTLASS_OPS_HOST_DEVICE void copy_async(float* slot, float const* source) {
  static_assert(kCount == 1 || kCount == 4, "4 or 16 bytes");
#if defined(__CUDA_ARCH__)
  unsigned const place = unsigned(__cvta_generic_to_shared(slot));
  if constexpr (kCount == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(source) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(source) : "memory");
  }
#else
  for (int i = 0; i < kCount; ++i) {
    slot[i] = source[i];
  }
#endif
}

/// For the copies of this thread alone.
CUTLASS_OPS_HOST_DEVICE void wait_for_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Each of kThreads threads has kColumns columns in registers and up to kRest in shared memory.
/// Fewer in registers than elsewhere: the loops over the rest need some.
template <int kThreads_, int kColumns_, int kRest>
struct SharedRows : RegisterRows<kThreads_, kColumns_> {
  static constexpr int kMaxColumns = kThreads_ * (kColumns_ + kRest);
  static constexpr int kSharedBytes = kThreads_ * kRest * int(sizeof(float));
};

/// The fragments of a thread behind those that it has in registers, in slots that no other thread
/// touches: nothing has to be waited for but the copies.
template <class Rows>
struct RowRest {
  static constexpr int kWidth = Rows::kWidth;
  static constexpr int kStep = Rows::kThreads * kWidth;
  using Fragment = epilogue::Fragment<kWidth>;

  Fragment* slots;  ///< kThreads apart
  int column;       ///< of the first of them
  int count;

  /// Bytes that a row of so many columns takes.
  static std::size_t shared_bytes(int columns) {
    int const rest = columns - Rows::kThreads * Rows::kColumns;
    return rest <= 0 ? 0 : std::size_t(ceil_div(rest, kStep)) * kStep * sizeof(float);
  }

  CUTLASS_OPS_HOST_DEVICE static RowRest make(RowShare<Rows> const& share, Fragment* slots,
                                              int thread) {
    int const left = share.left - Rows::kThreads * Rows::kColumns;
    return {slots + thread, share.column + Rows::kThreads * Rows::kColumns,
            left > 0 ? (left + kStep - 1) / kStep : 0};
  }

  CUTLASS_OPS_HOST_DEVICE Fragment& slot(int i) const { return slots[i * Rows::kThreads]; }

  CUTLASS_OPS_HOST_DEVICE static bool is_aligned(float const* first) {
    return reinterpret_cast<std::uintptr_t>(first) % sizeof(Fragment) == 0;
  }

  CUTLASS_OPS_HOST_DEVICE void load(epilogue::MatrixSource const& source, int row) const {
    float const* const first = source.data + row * source.row_stride + column;
    if (is_aligned(first)) {
      CUTLASS_OPS_UNROLL_BY(4)
      for (int i = 0; i < count; ++i) {
        copy_async<kWidth>(slot(i).values, first + i * kStep);
      }
    } else {
      for (int i = 0; i < count; ++i) {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          copy_async<1>(slot(i).values + j, first + i * kStep + j);
        }
      }
    }
  }

  /// Two loads at a time, for which there are registers.
  CUTLASS_OPS_HOST_DEVICE void add(float const* first) const {
    bool const aligned = is_aligned(first);
    CUTLASS_OPS_UNROLL_BY(2)
    for (int i = 0; i < count; ++i) {
      Fragment other;
      if (aligned) {
        other = *reinterpret_cast<Fragment const*>(first + i * kStep);
      } else {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          other[j] = first[i * kStep + j];
        }
      }
      other += slot(i);
      slot(i) = other;
    }
  }

  CUTLASS_OPS_HOST_DEVICE void add(epilogue::MatrixSource const& source, epilogue::Bias const& bias,
                                   int row) const {
    visit_addends(source, bias, row, column, [this](float const* first) { add(first); });
  }

  template <class Chain>
  CUTLASS_OPS_HOST_DEVICE float activate(Chain const& chain, int row, float largest) const {
    CUTLASS_OPS_UNROLL_BY(1)
    for (int i = 0; i < count; ++i) {
      Fragment const z =
          chain.template evaluate<kWidth>(Loaded<kWidth>{slot(i)}, row, column + i * kStep);
      slot(i) = z;
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        largest = fmaxf(largest, z[j]);
      }
    }
    return largest;
  }

  CUTLASS_OPS_HOST_DEVICE float exponentiate(float reference, float sum) const {
    CUTLASS_OPS_UNROLL_BY(2)
    for (int i = 0; i < count; ++i) {
      Fragment const e = epilogue::map(slot(i), [=](float z) { return expf(z - reference); });
      slot(i) = e;
      sum += (e[0] + e[1]) + (e[2] + e[3]);
    }
    return sum;
  }

  CUTLASS_OPS_HOST_DEVICE void store(float* out, float scale) const {
    CUTLASS_OPS_UNROLL_BY(2)
    for (int i = 0; i < count; ++i) {
      *reinterpret_cast<Fragment*>(out + column + i * kStep) =
          epilogue::map(slot(i), [scale](float e) { return e * scale; });
    }
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
