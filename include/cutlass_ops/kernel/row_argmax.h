// The maximum of scale * activation(h) over each row, where it stands, and its slope there: what a
// training step of a row maximum needs of the matrix h, which need not be kept, nor written: it may
// be what the partial matrices of split-K add up to.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/kernel/winners.h"
#include "cutlass_ops/predecessor.h"

namespace cutlass_ops {
namespace kernel {

/// The rule of torch.max over a dimension: the first NaN, else the first of the largest.
struct FirstMaximum {
  float value = -INFINITY;
  int column = INT_MAX;
  float h = 0.0f;  ///< of which it is the value

  CUTLASS_OPS_HOST_DEVICE void take(FirstMaximum const& other) {
    bool const before = other.column < column;
    bool const is_nan = value != value;
    bool const other_is_nan = other.value != other.value;
    if (other_is_nan ? (!is_nan || before)
                     : (!is_nan && (other.value > value || (other.value == value && before)))) {
      *this = other;
    }
  }
};

/// A fragment of four columns is for rows of whole aligned vectors.
template <int kThreadsPerRow_, int kWidth_>
struct RowArgmaxConfig {
  static constexpr int kThreads = 256;
  static constexpr int kThreadsPerRow = kThreadsPerRow_;
  static constexpr int kRows = kThreads / kThreadsPerRow;
  static constexpr int kWidth = kWidth_;
  static constexpr int kFragments = 16 / kWidth;
  static constexpr int kStep = kThreadsPerRow * kWidth;  ///< columns from a fragment to the next
  static constexpr int kParts = 4;      ///< partial matrices that are in flight together
  static constexpr int kCtasPerSm = 2;  ///< more, and there are no registers for that
};

/// A thread's fragments of a row of h. What is not there is -0, which leaves a sum as it is, to the
/// bit.
template <class Config>
struct RowArgmaxShare {
  using Fragment = epilogue::Fragment<Config::kWidth>;

  Fragment fragments[Config::kFragments];
  int left;  ///< columns that the row has from the first fragment on

  CUTLASS_OPS_DEVICE explicit RowArgmaxShare(int left) : left(left) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < Config::kWidth; ++j) {
        fragments[i][j] = -0.0f;
      }
    }
  }

  /// Adds kParts rows in their order, all loaded before the first is waited for.
  template <int kParts>
  CUTLASS_OPS_DEVICE void add(float const* first, std::int64_t stride) {
    Fragment parts[kParts][Config::kFragments] = {};
    CUTLASS_OPS_UNROLL
    for (int part = 0; part < kParts; ++part) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Config::kFragments; ++i) {
        if (i * Config::kStep < left) {
          parts[part][i] =
              *reinterpret_cast<Fragment const*>(first + part * stride + i * Config::kStep);
        }
      }
    }
    CUTLASS_OPS_UNROLL
    for (int part = 0; part < kParts; ++part) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Config::kFragments; ++i) {
        fragments[i] += parts[part][i];
      }
    }
  }

  /// Of fewer than 2 * kParts rows: in batches of powers of two, whose loads need no predicates but
  /// those of the columns.
  template <int kParts>
  CUTLASS_OPS_DEVICE void add_rest(float const* first, std::int64_t stride, int rows) {
    if (rows & kParts) {
      add<kParts>(first, stride);
      first += kParts * stride;
    }
    if constexpr (kParts > 1) {
      add_rest<kParts / 2>(first, stride, rows);
    }
  }

  /// The partial matrices and then the bias, the sum that matrix_epilogue makes.
  CUTLASS_OPS_DEVICE void load(RowArgmaxParams const& params, std::int64_t row, int column) {
    epilogue::MatrixSource const& source = params.source;
    float const* first = source.data + row * source.row_stride + column;
    int rest = source.splits;
    for (; rest >= 2 * Config::kParts; rest -= Config::kParts) {
      add<Config::kParts>(first, source.split_stride);
      first += Config::kParts * source.split_stride;
    }
    add_rest<Config::kParts>(first, source.split_stride, rest);
    if (params.bias.bias != nullptr) {
      add<1>(params.bias.bias + column, 0);
    }
  }
};

template <class Config, class Activation>
CUTLASS_OPS_DEVICE FirstMaximum first_maximum(RowArgmaxParams const& params, std::int64_t row,
                                              int thread) {
  constexpr int kThreads = Config::kThreadsPerRow;
  int const columns = params.source.columns;
  FirstMaximum best;
  for (int first = thread * Config::kWidth; first < columns;
       first += Config::kStep * Config::kFragments) {
    RowArgmaxShare<Config> share(columns - first);
    share.load(params, row, first);
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < Config::kWidth; ++j) {
        int const column = first + i * Config::kStep + j;
        float const h = share.fragments[i][j];
        if (column < columns) {
          best.take({params.scale * Activation::apply(h), column, h});
        }
      }
    }
  }
  CUTLASS_OPS_UNROLL
  for (int offset = 16; offset > 0; offset /= 2) {
    best.take({__shfl_xor_sync(0xffffffffu, best.value, offset),
               __shfl_xor_sync(0xffffffffu, best.column, offset),
               __shfl_xor_sync(0xffffffffu, best.h, offset)});
  }
  if constexpr (kThreads > 32) {
    __shared__ FirstMaximum of_warps[kThreads / 32];
    __syncthreads();  // those of the row before have been read
    if (threadIdx.x % 32 == 0) {
      of_warps[threadIdx.x / 32] = best;
    }
    __syncthreads();
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      best.take(of_warps[warp]);
    }
  }
  return best;
}

/// A warp a row, or, where rows are long, a CTA. Behind its rows `repair` mends the values.
template <class Config, class Activation, class Repair>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm) row_argmax(
    __grid_constant__ RowArgmaxParams const params, __grid_constant__ Repair const repair) {
  constexpr int kThreads = Config::kThreadsPerRow;
  static_assert(kThreads == 32 || kThreads == Config::kThreads, "a warp or the CTA");
  wait_for_predecessor();
  release_successor();
  int const thread = threadIdx.x % kThreads;
  std::int64_t const step = std::int64_t{gridDim.x} * Config::kRows;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * Config::kRows; begin < params.rows;
       begin += step) {
    std::int64_t const row = begin + threadIdx.x / kThreads;
    if (row < params.rows) {
      FirstMaximum const best = first_maximum<Config, Activation>(params, row, thread);
      if (thread == 0) {
        params.values[row] = best.value;
        params.winners[row] = best.column;
        params.slopes[row] = params.scale * Activation::derivative(best.h);
      }
    }
    repair.refine(begin, Config::kRows);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
