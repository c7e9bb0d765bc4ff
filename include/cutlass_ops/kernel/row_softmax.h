// Softmax over each row of chain(source + bias), the row in registers: softmax(z), or
// softmax(gelu(z + bias)), read once and written once.
//
// NaN and +inf need no case of their own: exp(NaN - m) is NaN, exp(inf - inf) is NaN, and either
// makes the sum, and so the whole row, NaN, as torch.softmax has it. The maximum may drop NaN for
// that reason. A row of -inf alone gives NaN too.
#pragma once

#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/epilogue/warp_reduce.h"

namespace cutlass_ops {
namespace kernel {

template <class Chain>
struct RowSoftmaxParams {
  epilogue::MatrixSource source;
  epilogue::Bias bias;
  Chain chain;  ///< elementwise steps
  float* out;   ///< [rows, columns], contiguous; may be the source itself
  int rows;
  int columns;
  bool vectorized;  ///< rows of `out` are 16-byte aligned
};

/// Unlike epilogue::MaxMonoid it drops NaN, which comes back through the sum.
struct FloatMax {
  CUTLASS_OPS_DEVICE static float identity() { return -INFINITY; }
  CUTLASS_OPS_DEVICE static float combine(float a, float b) { return fmaxf(a, b); }
};

/// Combines over the kThreads threads that share a row: part of a warp, a warp, or the whole CTA,
/// which may do so once per monoid, each having its own shared memory.
template <class Monoid, int kThreads>
CUTLASS_OPS_DEVICE float reduce_threads(float value) {
  if constexpr (kThreads <= 32) {
    return epilogue::warp_reduce<Monoid, kThreads>(value);
  } else {
    constexpr int kWarps = kThreads / 32;
    __shared__ float partials[kWarps];
    value = epilogue::warp_reduce<Monoid>(value);
    if (threadIdx.x % 32 == 0) {
      partials[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return epilogue::warp_reduce<Monoid, kWarps>(partials[threadIdx.x % kWarps]);
  }
}

/// A row is shared out to the kThreads threads of each of kCluster CTAs, kColumns columns a thread.
/// Thirty-two columns are as many as leave 1024 threads an SM their registers, and in flight
/// together, 128 KB, they are three times what it takes to keep the memory of an H200 busy.
template <int kThreads_, int kColumns_, int kCluster_ = 1>
struct RegisterRows {
  static constexpr int kThreads = kThreads_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kMaxColumns = kThreads * kColumns * kCluster;
  static constexpr int kCtaThreads =
      kThreads <= 32 ? 128 : kThreads;  ///< reduce_threads wants a CTA or part of a warp
  static constexpr int kRowsPerCta = kCtaThreads / kThreads;
  static constexpr int kMinCtas = 1024 / kCtaThreads;  ///< 64 registers a thread
};

/// Source: a fragment that is in registers already.
template <int kFragmentWidth>
struct Loaded {
  epilogue::Fragment<kFragmentWidth> z;

  template <int kWidth>
  CUTLASS_OPS_DEVICE epilogue::Fragment<kWidth> load(int, int) const {
    static_assert(kWidth == kFragmentWidth, "elementwise steps load what they are asked for");
    return z;
  }
};

/// What one thread holds of a row: fragments of kWidth columns, neighbouring threads holding
/// neighbouring ones. Width 4 wants every row 16-byte aligned and whole fragments, width 1 nothing.
template <class Rows, int kWidth>
struct RowShare {
  static constexpr int kFragments = Rows::kColumns / kWidth;
  static constexpr int kStep = Rows::kThreads * kWidth;  ///< columns from one fragment to the next
  using Fragment = epilogue::Fragment<kWidth>;

  Fragment z[kFragments];
  int left;  ///< columns that the row has from this thread's first one on

  CUTLASS_OPS_DEVICE bool holds(int i) const { return i * kStep < left; }

  /// Has the comparisons of holds() made again from here on: the compiler would keep the results of
  /// all of them, and spill.
  CUTLASS_OPS_DEVICE void forget() { asm volatile("" : "+r"(left)); }

  /// All loads are issued before the first is waited for, which is what the speed of this kernel
  /// comes from: no branch but the predicate stands between them, no use of what they load.
  CUTLASS_OPS_DEVICE void load(float const* first) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        z[i][j] = -INFINITY;
      }
      if (holds(i)) {
        z[i] = *reinterpret_cast<Fragment const*>(first + i * kStep);
      }
    }
  }

  /// Adds another row: the part of the next split, or the bias. In two batches, for which there are
  /// registers.
  CUTLASS_OPS_DEVICE void add(float const* first) {
    constexpr int kBatch = (kFragments + 1) / 2;
    forget();
    CUTLASS_OPS_UNROLL
    for (int begin = 0; begin < kFragments; begin += kBatch) {
      Fragment other[kBatch];
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        other[i] = {};
        if (holds(begin + i)) {
          other[i] = *reinterpret_cast<Fragment const*>(first + (begin + i) * kStep);
        }
      }
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          z[begin + i][j] += other[i][j];
        }
      }
    }
  }

  /// source + bias from `column` on.
  template <class Chain>
  CUTLASS_OPS_DEVICE void load(RowSoftmaxParams<Chain> const& params, int row, int column) {
    float const* first = params.source.data + row * params.source.row_stride + column;
    load(first);
    // One loop for both, and not unrolled: two copies of add() are more than the registers take.
    CUTLASS_OPS_UNROLL_BY(1)
    for (int rest = params.source.splits - 1; rest >= 0; --rest) {
      first = rest > 0 ? first + params.source.split_stride : params.bias.bias + column;
      if (rest > 0 || params.bias.bias != nullptr) {
        add(first);
      }
    }
  }

  /// Takes the share through the chain; its largest element. Beyond the last column stays -inf.
  template <class Chain>
  CUTLASS_OPS_DEVICE float activate(Chain const& chain, int row, int column) {
    static_assert(!Chain::kHasWindow, "a row of the result is a row of the source");
    forget();
    float largest = FloatMax::identity();
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      if (holds(i)) {
        z[i] = chain.template evaluate<kWidth>(Loaded<kWidth>{z[i]}, row, column + i * kStep);
      }
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        largest = fmaxf(largest, z[i][j]);
      }
    }
    return largest;
  }

  /// exp(z - reference); its sum. Beyond the last column exp(-inf - reference) adds 0, or NaN to a
  /// row that is NaN all over.
  CUTLASS_OPS_DEVICE float exponentiate(float reference) {
    float sum = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      float part = 0.0f;
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        z[i][j] = expf(z[i][j] - reference);
        part += z[i][j];
      }
      sum += part;
    }
    return sum;
  }

  CUTLASS_OPS_DEVICE void store(float* first, float scale) {
    forget();
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      if (holds(i)) {
        *reinterpret_cast<Fragment*>(first + i * kStep) =
            epilogue::map(z[i], [scale](float e) { return e * scale; });
      }
    }
  }
};

template <class Rows, int kWidth, class Chain>
__global__ void __launch_bounds__(Rows::kCtaThreads, Rows::kMinCtas) row_softmax(
    __grid_constant__ RowSoftmaxParams<Chain> const params) {
  static_assert(Rows::kCluster == 1, "row_softmax_cluster takes these");
  wait_for_predecessor();
  release_successor();
  int const row = int(blockIdx.x) * Rows::kRowsPerCta + int(threadIdx.x) / Rows::kThreads;
  int const column = int(threadIdx.x) % Rows::kThreads * kWidth;
  RowShare<Rows, kWidth> share;
  // The reductions are collective: threads of rows beyond the last take part, with no columns.
  bool const exists = Rows::kRowsPerCta == 1 || row < params.rows;
  share.left = exists ? params.columns - column : 0;
  share.load(params, row, column);
  float largest = share.activate(params.chain, row, column);
  largest = reduce_threads<FloatMax, Rows::kThreads>(largest);
  float sum = share.exponentiate(largest);
  sum = reduce_threads<epilogue::SumMonoid, Rows::kThreads>(sum);
  share.store(params.out + std::int64_t{row} * params.columns + column, 1.0f / sum);
}

}  // namespace kernel
}  // namespace cutlass_ops
