// What one thread holds of a row of the softmax in registers, and what it does with it.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/kernel/row_cut.h"

namespace cutlass_ops {
namespace kernel {

/// A row is shared out to the kThreads threads of each of kCluster CTAs, kColumns columns a thread.
/// Thirty-two columns are as many as leave 1024 threads an SM their registers, and in flight
/// together, 128 KB, they are three times what it takes to keep the memory of an H200 busy.
template <int kThreads_, int kColumns_, int kCluster_ = 1, int kWidth_ = 4>
struct RegisterRows {
  static constexpr int kThreads = kThreads_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kWidth = kWidth_;  ///< columns of a fragment
  static constexpr int kMaxColumns = kThreads * kColumns * kCluster;
  static constexpr int kCtaThreads =
      kThreads <= 32 ? 128 : kThreads;  ///< reduce_threads wants a CTA or part of a warp
  static constexpr int kRowsPerCta = kCtaThreads / kThreads;
  static constexpr int kMinCtas = 1024 / kCtaThreads;  ///< 64 registers a thread
  static constexpr int kSharedBytes = 0;               ///< dynamic, for the longest rows
  /// Rows may begin and end beside a 16-byte boundary: there is a thread for each of their edges.
  static constexpr bool kHasEdges = kWidth == RowCut::kWidth && kThreads >= RowCut::kMaxEdges;
  static constexpr bool kWantsAlignment = kWidth > 1 && !kHasEdges;
};

/// As a row of the result lies, so that it does not depend on how its source lies in memory (rows
/// of up to 8 columns, which are not cut, may).
template <class Rows>
CUTLASS_OPS_HOST_DEVICE RowCut cut_row(float const* out, int columns) {
  return Rows::kHasEdges ? RowCut::make(out, columns) : RowCut{0, columns, 0};
}

/// Source: a fragment that is in registers already.
template <int kFragmentWidth>
struct Loaded {
  epilogue::Fragment<kFragmentWidth> z;

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE epilogue::Fragment<kWidth> load(int, int) const {
    static_assert(kWidth == kFragmentWidth, "elementwise steps load what they are asked for");
    return z;
  }
};

/// What is added to `row` of the first part of the source, from `column` on: the parts of the other
/// splits, and the bias.
template <class Add>
CUTLASS_OPS_HOST_DEVICE void visit_addends(epilogue::MatrixSource const& source,
                                           epilogue::Bias const& bias, int row, int column,
                                           Add add) {
  float const* first = source.data + row * source.row_stride + column;
  // One loop for both, and not unrolled: two copies of `add` are more than the registers take.
  CUTLASS_OPS_UNROLL_BY(1)
  for (int rest = source.splits - 1; rest >= 0; --rest) {
    first = rest > 0 ? first + source.split_stride : bias.bias + column;
    if (rest > 0 || bias.bias != nullptr) {
      add(first);
    }
  }
}

/// What one thread holds of a row: fragments of its body, neighbouring threads holding neighbouring
/// ones, and at most one column of its edges. The cut is that of the row of `out`; another row of
/// memory that lies otherwise beside the 16-byte boundaries is read column by column.
template <class Rows>
struct RowShare {
  static constexpr int kWidth = Rows::kWidth;
  static constexpr int kFragments = Rows::kColumns / kWidth;
  static constexpr int kStep = Rows::kThreads * kWidth;  ///< columns from one fragment to the next
  using Fragment = epilogue::Fragment<kWidth>;

  Fragment z[kFragments];
  float edge;
  int column;   ///< this thread's first one in the body
  int left;     ///< columns that the body has from there on
  int to_edge;  ///< from `column` to that of the edge; kNoEdge

  static constexpr int kNoEdge = 1 << 30;

  CUTLASS_OPS_HOST_DEVICE bool holds(int i) const { return i * kStep < left; }
  CUTLASS_OPS_HOST_DEVICE bool holds_edge() const { return Rows::kHasEdges && to_edge != kNoEdge; }

  /// The share of thread `thread` in `part` columns of the body from `begin` on, and in the edges.
  CUTLASS_OPS_HOST_DEVICE void take(RowCut const& cut, int thread, int begin, int part,
                                    bool edges) {
    column = cut.head + begin + thread * kWidth;
    int const rest = cut.body - begin;
    left = (rest < part ? rest : part) - thread * kWidth;
    to_edge = edges && thread < cut.edges ? cut.edge_column(thread) - column : kNoEdge;
  }

  /// Has the comparisons of holds() made again from here on: the compiler would keep the results of
  /// all of them, and spill.
  CUTLASS_OPS_HOST_DEVICE void forget() { asm volatile("" : "+r"(left)); }

  /// kCount fragments from `first` on, of fragment `begin` and those that follow it.
  template <int kCount>
  CUTLASS_OPS_HOST_DEVICE void read(Fragment (&fragments)[kCount], float const* first,
                                    int begin) const {
    if (is_aligned(first)) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (holds(begin + i)) {
          fragments[i] = *reinterpret_cast<Fragment const*>(first + (begin + i) * kStep);
        }
      }
    } else {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (holds(begin + i)) {
          CUTLASS_OPS_UNROLL
          for (int j = 0; j < kWidth; ++j) {
            fragments[i][j] = first[(begin + i) * kStep + j];
          }
        }
      }
    }
  }

  /// All loads are issued before the first is waited for, which is what the speed of this kernel
  /// comes from: no branch but the predicate stands between them, no use of what they load.
  CUTLASS_OPS_HOST_DEVICE void load(float const* first) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        z[i][j] = -INFINITY;
      }
    }
    read(z, first, 0);
    edge = holds_edge() ? first[to_edge] : -INFINITY;
  }

  /// Adds another row: the part of the next split, or the bias. In two batches, for which there are
  /// registers.
  CUTLASS_OPS_HOST_DEVICE void add(float const* first) {
    constexpr int kBatch = (kFragments + 1) / 2;
    float const other_edge = holds_edge() ? first[to_edge] : 0.0f;
    CUTLASS_OPS_UNROLL
    for (int begin = 0; begin < kFragments; begin += kBatch) {
      forget();
      Fragment other[kBatch] = {};
      read(other, first, begin);
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        z[begin + i] += other[i];
      }
    }
    edge += other_edge;
  }

  /// source + bias.
  CUTLASS_OPS_HOST_DEVICE void load(epilogue::MatrixSource const& source,
                                    epilogue::Bias const& bias, int row) {
    load(source.data + row * source.row_stride + column);
    visit_addends(source, bias, row, column, [this](float const* first) { add(first); });
  }

  /// Takes the share through the chain; its largest element. Beyond the last column stays -inf.
  template <class Chain>
  CUTLASS_OPS_HOST_DEVICE float activate(Chain const& chain, int row) {
    static_assert(!Chain::kHasWindow, "a row of the result is a row of the source");
    forget();
    if (holds_edge()) {
      edge = chain.template evaluate<1>(Loaded<1>{{edge}}, row, column + to_edge)[0];
    }
    float largest = edge;
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
  CUTLASS_OPS_HOST_DEVICE float exponentiate(float reference) {
    edge = Rows::kHasEdges ? expf(edge - reference) : 0.0f;
    float sum = edge;
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

  CUTLASS_OPS_HOST_DEVICE void store(float* first, float scale) {
    forget();
    if (holds_edge()) {
      first[to_edge] = edge * scale;
    }
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      if (holds(i)) {
        *reinterpret_cast<Fragment*>(first + i * kStep) =
            epilogue::map(z[i], [scale](float e) { return e * scale; });
      }
    }
  }

 private:
  CUTLASS_OPS_HOST_DEVICE static bool is_aligned(float const* first) {
    return !Rows::kHasEdges || reinterpret_cast<std::uintptr_t>(first) % sizeof(Fragment) == 0;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
