// What decides on the factors of the columns of W, for tests/test_column_exponents.py: the very
// code that runs on the GPU.
#include "host_cta.h"

#include "cutlass_ops/kernel/column_exponents.h"

using namespace cutlass_ops::kernel;

extern "C" {

void sample_columns(float const* weight, long stride, long step, int rows, int columns,
                    float* means, int* counts) {
  ColumnFactorsParams const params{weight, stride, step, rows, columns, columns, nullptr, nullptr};
  for (int column = 0; column < columns; ++column) {
    ColumnSamples const samples = sample_column(params, column);
    means[column] = samples.mean();
    counts[column] = samples.count;
  }
}

/// The exponent of every column's factor, of columns of which some suffice; whether these are
/// spread.
bool exponents_of_factors(float const* means, bool const* suffice, int columns, int* out) {
  ColumnStatistics all;
  for (int column = 0; column < columns; ++column) {
    if (suffice[column]) {
      all.include(means[column]);
    }
  }
  for (int column = 0; column < columns; ++column) {
    out[column] = all.factor_exponent(means[column]);
  }
  return all.are_spread();
}

bool row_loses(float const* row, float const* factors, int columns, int largest_factor) {
  RowNorms norms;
  for (int column = 0; column < columns; ++column) {
    norms.include(row[column], factors[column]);
  }
  return norms.lose(largest_factor);
}

float hold_factor(float factor) { return held_factor(factor); }

int factor_there_and_back(float factor, float* inverse) {
  *inverse = inverse_factor(factor);
  return exponent_of_factor(factor);
}

}  // extern "C"
