// By how many binades the columns of W differ, in some of its rows, and whether the others follow:
// what decides on the factors of column_factors.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace kernel {

/// Of a factor, which is a power of two and far from the ends of float's range.
CUTLASS_OPS_DEVICE int exponent_of_factor(float factor) {
  return int(__float_as_uint(factor) >> 23) - 127;
}

/// Exact for a factor.
CUTLASS_OPS_DEVICE float inverse_factor(float factor) {
  return __uint_as_float((254u << 23) - __float_as_uint(factor));
}

struct ColumnFactorsConfig {
  static constexpr int kThreads = 1024;
  static constexpr int kCluster = 8;    ///< CTAs; one alone took 31 us for 8192 columns
  static constexpr int kSamples = 8;    ///< rows of W that are looked at, all at once
  static constexpr int kEnough = 6;     ///< elements that tell the exponent of a column
  static constexpr int kRounds = 8;     ///< of samples, for a column that has not enough of them
  static constexpr int kDeadZone = 10;  ///< binades within which columns count as alike
  static constexpr int kMost = 40;      ///< binades of a factor
  static constexpr int kMostLoss = 16;  ///< binades that a row of W may lose (RowNorms::lose)
};

struct ColumnFactorsParams {
  float const* weight;
  std::int64_t stride;  ///< elements between rows
  std::int64_t step;    ///< elements between columns
  int rows;
  int columns;
  int pitch;
  float* factors;  ///< [pitch], of use only if columns are not alike; 1 beyond the last
  int* spread;     ///< whether they are not

  CUTLASS_OPS_DEVICE float element(std::int64_t row, std::int64_t column) const {
    return weight[row * stride + column * step];
  }
};

/// The biased exponent of a number; 0 where it has none of its own, being zero or denormal, and
/// where it is infinite or NaN, for a row that is computed anew must not decide on the rest.
CUTLASS_OPS_DEVICE int exponent_or_zero(float value) {
  int const exponent = int(__float_as_uint(value) >> 23 & 0xff);
  return exponent < 0xff ? exponent : 0;
}

/// Elements of a column of W that have an exponent.
struct ColumnSamples {
  int sum = 0;  ///< of their exponents
  int count = 0;

  CUTLASS_OPS_DEVICE void include(float value) {
    int const exponent = exponent_or_zero(value);
    sum += exponent;
    count += exponent > 0 ? 1 : 0;
  }

  CUTLASS_OPS_DEVICE bool suffice() const { return count >= ColumnFactorsConfig::kEnough; }

  /// NaN where none has an exponent.
  CUTLASS_OPS_DEVICE float mean() const { return count > 0 ? float(sum) / float(count) : NAN; }
};

/// Rows at equal distances, and the rows behind these as long as samples do not suffice. The means
/// of a few would differ where columns do not, and all of W be read for nothing.
CUTLASS_OPS_DEVICE ColumnSamples sample_column(ColumnFactorsParams const& params, int column) {
  constexpr int kSamples = ColumnFactorsConfig::kSamples;
  unsigned const rows = unsigned(params.rows);
  unsigned const rounds = min(rows, unsigned(ColumnFactorsConfig::kRounds));
  ColumnSamples samples;
  CUTLASS_OPS_UNROLL_BY(1)
  for (unsigned round = 0; round < rounds && !samples.suffice(); ++round) {
    float values[kSamples];
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kSamples; ++i) {
      // With fewer rows than samples some are looked at more than once.
      unsigned const row = unsigned(std::uint64_t(i) * rows / kSamples) + round;
      values[i] = params.element(row < rows ? row : row - rows, column);
    }
    CUTLASS_OPS_UNROLL
    for (float const value : values) {
      samples.include(value);
    }
  }
  return samples;
}

/// Of the columns whose samples suffice, over the means of these.
struct ColumnStatistics {
  float lowest = INFINITY;
  float highest = -INFINITY;
  float total = 0.0f;
  float columns = 0.0f;

  CUTLASS_OPS_DEVICE void include(float mean) {
    lowest = fminf(lowest, mean);
    highest = fmaxf(highest, mean);
    total += mean;
    columns += 1.0f;
  }

  CUTLASS_OPS_DEVICE bool are_spread() const {
    return highest - lowest > float(ColumnFactorsConfig::kDeadZone);
  }

  /// Of the factor of a column with this mean, which is held to the range of those that suffice; 0
  /// for NaN.
  CUTLASS_OPS_DEVICE int factor_exponent(float mean) const {
    constexpr float kMost = float(ColumnFactorsConfig::kMost);
    if (!(mean == mean)) {
      return 0;
    }
    float const binades = rintf(fminf(fmaxf(mean, lowest), highest) - total / columns);
    return int(fmaxf(-kMost, fminf(kMost, binades)));
  }
};

/// A factor under which no row loses: half of the binades by the largest factor, half by W.
CUTLASS_OPS_DEVICE float held_factor(float factor) {
  float const most = ldexpf(1.0f, ColumnFactorsConfig::kMostLoss / 2);
  return fmaxf(1.0f / most, fminf(most, factor));
}

/// The squared norm of a row of W. In double, which holds the squares of all floats.
struct RowNorms {
  double whole = 0.0;
  double divided = 0.0;  ///< once every element is divided by its column's factor

  CUTLASS_OPS_DEVICE void include(float value, float factor) {
    double const quotient = double(value) * double(inverse_factor(factor));
    whole += double(value) * double(value);
    divided += quotient * quotient;
  }

  /// Whether this row is not what the samples promised. Under factors up to 2^b the halves of a row
  /// of x are as fine as 2^(b - 39) of its largest element, at worst, and those of W likewise: an
  /// error of 2^(b - 39) times the norms of x and of W / f, times the root of K where all errors
  /// have one sign. It is to be 2^-23 of those of x and W. Rows of zeros, infinities and NaN do
  /// not.
  CUTLASS_OPS_DEVICE bool lose(int largest_factor) const {
    double const most = ldexp(1.0, ColumnFactorsConfig::kMostLoss - largest_factor);
    return divided > most * most * whole;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
