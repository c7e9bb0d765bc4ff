// Splits a matrix, or the means of its rows, into the two fp16 halves that gemm::Fp16Pairs holds,
// in one pass at memory speed.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/kernel/fold_rows.h"
#include "cutlass_ops/kernel/split_balanced.h"
#include "cutlass_ops/kernel/split_target.h"

namespace cutlass_ops {
namespace kernel {

/// kThreads threads, a warp or a CTA, take a row of the result, kThreads * kColumns columns at a
/// time. kFolds: a row is the mean of kernel_size rows of the source.
template <int kThreads_, int kColumns_, bool kFolds_>
struct SplitRowsConfig {
  static constexpr int kThreads = kThreads_;
  static constexpr int kFragments = kColumns_ / 4;
  static constexpr bool kFolds = kFolds_;
  static constexpr int kStep = kThreads * 4;  ///< columns from one fragment of a thread to the next
  static constexpr int kChunk = kThreads * kColumns_;
  static constexpr int kCtaThreads = kThreads == 32 ? 256 : kThreads;
  static constexpr int kRowsPerCta = kCtaThreads / kThreads;
  static constexpr int kRowsAhead = 32 / kColumns_;  ///< of a mean, that are loaded at a time
  /// An SM holds so many threads, whose registers are the elements, and, to fold, sums of two each.
  static constexpr int kSmThreads = kColumns_ == 32   ? (kFolds ? 512 : 1024)
                                    : kColumns_ == 16 ? (kFolds ? 512 : 1280)
                                                      : (kFolds ? 768 : 1536);
  static constexpr int kMinCtas = kSmThreads / kCtaThreads;
};

/// One thread's columns of a chunk.
template <class Config>
struct SplitShare {
  using Fragment = epilogue::Fragment<4>;
  Fragment z[Config::kFragments];

  CUTLASS_OPS_DEVICE void clear() {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      z[i] = Fragment{};
    }
  }

  /// Columns of a row from `first` on, `left` of which there are. All loads are issued before the
  /// first is waited for: no branch but the predicate stands between them.
  CUTLASS_OPS_DEVICE void load(float const* first, int left, bool vectorized) {
    clear();
    if (vectorized) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Config::kFragments; ++i) {
        if (i * Config::kStep + 4 <= left) {
          z[i] = load_once<4>(first + i * Config::kStep);
        }
      }
    }
    int const whole = vectorized ? left / 4 * 4 : 0;  // columns that have been loaded
    if (whole < left) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Config::kFragments; ++i) {
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < 4; ++j) {
          int const column = i * Config::kStep + j;
          if (column >= whole && column < left) {
            z[i][j] = first[column];
          }
        }
      }
    }
  }

  /// The means of kernel_size rows, summed in float64, in their order, as fold_rows does.
  CUTLASS_OPS_DEVICE void load_means(SplitRowsParams const& params, float const* first, int left) {
    double sums[Config::kFragments][4] = {};
    SplitShare rows[Config::kRowsAhead];
    CUTLASS_OPS_UNROLL_BY(1)
    for (int row = 0; row < params.kernel_size; row += Config::kRowsAhead) {
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < Config::kRowsAhead; ++i, first += params.stride) {
        rows[i].load(first, row + i < params.kernel_size ? left : 0, params.vectorized);
      }
      CUTLASS_OPS_UNROLL
      for (SplitShare const& next : rows) {
        next.add_to(sums);
      }
    }
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        z[i][j] = float(sums[i][j] / double(params.kernel_size));
      }
    }
  }

  CUTLASS_OPS_DEVICE void add_to(double (&sums)[Config::kFragments][4]) const {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        sums[i][j] += double(z[i][j]);
      }
    }
  }

  CUTLASS_OPS_DEVICE void take(SplitRowsParams const& params, int row, std::int64_t column) {
    float const* const first =
        params.source + std::int64_t{row} * params.kernel_size * params.stride + column;
    int const left = int(params.columns - column);
    if constexpr (Config::kFolds) {
      load_means(params, first, left);
    } else {
      load(first, left, params.vectorized);
    }
  }

  /// Infinity where an element is not finite.
  CUTLASS_OPS_DEVICE float largest(bool& has_nan) const {
    float value = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      CUTLASS_OPS_UNROLL
      for (int j = 0; j < 4; ++j) {
        has_nan |= z[i][j] != z[i][j];
        value = fmaxf(value, z[i][j] == z[i][j] ? fabsf(z[i][j]) : INFINITY);
      }
    }
    return value;
  }

  /// Columns beyond the last, up to the pitch, become zeros.
  CUTLASS_OPS_DEVICE void store(gemm::Fp16Scale scale, __half* high, __half* low, int left) const {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < Config::kFragments; ++i) {
      if (i * Config::kStep < left) {
        Fragment v = z[i];
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < 4; ++j) {
          v[j] = scale.apply(v[j]);
        }
        store_halves(v, high + i * Config::kStep, low + i * Config::kStep);
      }
    }
  }
};

/// Rows of more than a chunk are read twice. `ahead`: the predecessor makes nothing but the
/// factors, so that the first loads need not wait for it (predecessor.h).
template <class Config>
CUTLASS_OPS_DEVICE void split_row(SplitRowsParams const& params, int row, bool ahead) {
  int const thread = int(threadIdx.x) % Config::kThreads;
  std::int64_t const begin = thread * 4;
  bool const again = params.columns > Config::kChunk;
  SplitShare<Config> share;
  share.take(params, row, begin);
  if (ahead) {
    wait_for_predecessor();
  }
  if (*params.spread != 0) {
    split_balanced_row<Config>(params, row);
    return;
  }
  bool has_nan = false;
  float largest = share.largest(has_nan);
  std::int64_t column = begin + Config::kChunk;
  for (; column - begin < params.columns; column += Config::kChunk) {
    share.take(params, row, column);
    largest = fmaxf(largest, share.largest(has_nan));
  }
  largest = reduce_threads<FloatMax, Config::kThreads>(largest);
  bool const finite = largest < INFINITY;
  auto const scale = gemm::Fp16Scale::of(finite ? largest : 0.0f);
  SplitTarget const target{params, row};
  target.template set_scale<Config>(scale, finite, has_nan);
  for (column = begin; column - begin < params.columns; column += Config::kChunk) {
    if (again) {
      share.take(params, row, column);
    }
    if (!finite) {
      share.clear();
    }
    share.store(scale, target.high() + column, target.low() + column, int(params.pitch - column));
  }
}

/// CTAs for the rows of the one matrix and then for those of the other, which may be none: W, whose
/// rows take longer, and x.
template <class First, class Second>
__global__ void __launch_bounds__(First::kCtaThreads, First::kMinCtas) split_rows(
    __grid_constant__ SplitRowsParams const first, __grid_constant__ SplitRowsParams const second,
    bool ahead) {
  static_assert(First::kThreads == Second::kThreads, "one launch");
  if (!ahead) {
    wait_for_predecessor();
  }
  release_successor();
  constexpr int kRowsPerCta = First::kRowsPerCta;
  int const first_ctas = (first.rows + kRowsPerCta - 1) / kRowsPerCta;
  bool const is_first = int(blockIdx.x) < first_ctas;
  int const cta = is_first ? int(blockIdx.x) : int(blockIdx.x) - first_ctas;
  int const row = cta * kRowsPerCta + int(threadIdx.x) / First::kThreads;
  if (row >= (is_first ? first.rows : second.rows)) {
    return;
  }
  if (is_first) {
    split_row<First>(first, row, ahead);
  } else {
    split_row<Second>(second, row, ahead);
  }
  SplitRowsParams const& params = is_first ? first : second;
  if (int const thread = int(threadIdx.x) % First::kThreads;
      params.bias != nullptr && thread < 32) {
    fold_bias(params.bias, params.bias_out, params.kernel_size, row, thread);
  }
}

}  // namespace kernel
}  // namespace cutlass_ops
