// The threads of a row of the softmax, or of its gradient, one after another, for
// tests/test_row_shares.py: which of them holds which column, and what it reads and writes. The
// very code that runs on the GPU, but for the reductions over threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/gradient_share.h"
#include "cutlass_ops/kernel/row_rest.h"
#include "cutlass_ops/kernel/row_share.h"

using namespace cutlass_ops;
using epilogue::Chain;
using kernel::GradientRows;
using kernel::GradientShare;
using kernel::RegisterRows;
using kernel::RowCut;
using kernel::RowGradientParams;
using kernel::RowRest;
using kernel::RowShare;
using kernel::SharedRows;

namespace {

struct Matrix {
  epilogue::MatrixSource source;
  epilogue::Bias bias;
  float* out;
  int columns;
};

/// False where a fragment of the body is not aligned in `out`.
template <class Rows>
bool run(Matrix const& matrix, int row) {
  float* const out = matrix.out + std::int64_t{row} * matrix.columns;
  RowCut const cut = kernel::cut_row<Rows>(out, matrix.columns);
  int const part = Rows::kCluster == 1 ? cut.body : cut.part(Rows::kCluster);
  std::vector<RowShare<Rows>> shares(Rows::kThreads * Rows::kCluster);
  using Fragment = typename RowShare<Rows>::Fragment;
  std::vector<Fragment> slots(RowRest<Rows>::shared_bytes(matrix.columns) / sizeof(Fragment));
  std::vector<RowRest<Rows>> rests;
  float largest = -INFINITY;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    int const rank = int(i) / Rows::kThreads;
    shares[i].take(cut, int(i) % Rows::kThreads, rank * part, part, rank == 0);
    bool const aligned = epilogue::is_aligned(out + shares[i].column);
    if (Rows::kWidth > 1 && shares[i].left > 0 && !aligned) {
      return false;
    }
    shares[i].load(matrix.source, matrix.bias, row);
    largest = std::max(largest, shares[i].activate(Chain<>{}, row));
    if constexpr (Rows::kSharedBytes > 0) {
      auto const rest = RowRest<Rows>::make(shares[i], slots.data(), int(i));
      rest.load(matrix.source, row);
      rest.add(matrix.source, matrix.bias, row);
      largest = rest.activate(Chain<>{}, row, largest);
      rests.push_back(rest);
    }
  }
  double sum = 0.0;
  for (auto& share : shares) {
    sum += share.exponentiate(largest);
  }
  for (auto const& rest : rests) {
    sum += rest.exponentiate(largest, 0.0f);
  }
  for (auto const& rest : rests) {
    rest.store(out, float(1.0 / sum));
  }
  for (auto& share : shares) {
    share.store(out + share.column, float(1.0 / sum));
  }
  return true;
}

using Runner = bool (*)(Matrix const&, int);

constexpr Runner kRunners[] = {
    run<RegisterRows<1, 8, 1, 1>>, run<RegisterRows<8, 8>>,      run<RegisterRows<32, 16>>,
    run<RegisterRows<32, 32>>,     run<RegisterRows<64, 32, 4>>, run<SharedRows<128, 8, 16>>,
};

/// As above; each fragment's `also` adds it to params.sums, one row of them.
template <class Rows>
bool run_gradient(RowGradientParams const& params, int row) {
  float* const dz = params.dz + std::int64_t{row} * params.columns;
  RowCut const cut = kernel::cut_row<Rows>(dz, params.columns);
  std::vector<GradientShare<Rows>> shares(Rows::kThreads);
  double sum = 0.0;
  for (int i = 0; i < Rows::kThreads; ++i) {
    auto& share = shares[i];
    share.take(cut, i, 0, cut.body, true);
    if (Rows::kWidth > 1 && share.left > 0 && !epilogue::is_aligned(dz + share.column)) {
      return false;
    }
    share.load(params, row);
    sum += share.template weigh<epilogue::Gelu>(params.bias);
  }
  for (auto& share : shares) {
    share.store(dz + share.column, float(sum), [&](int i, auto const& fragment) {
      for (int j = 0; j < share.kWidth; ++j) {
        params.sums[share.column + i * share.kStep + j] += fragment[j];
      }
    });
  }
  return true;
}

using GradientRunner = bool (*)(RowGradientParams const&, int);

constexpr GradientRunner kGradientRunners[] = {
    run_gradient<GradientRows<1, 8, 1>>,
    run_gradient<GradientRows<8, 8>>,
    run_gradient<GradientRows<32, 16>>,
    run_gradient<GradientRows<64, 32>>,
};

}  // namespace

extern "C" {

/// Rows of the gradient of softmax(gelu(z + bias)) by configuration `index`; what is no edge is
/// added to `sums`, too.
bool gradient_rows(int index, float const* g, long g_stride, float const* y, float const* z,
                   float const* bias, int rows, int columns, float* dz, float* sums) {
  RowGradientParams params{};
  params.g = epilogue::MatrixSource::make(g, columns, g_stride);
  params.y = epilogue::MatrixSource::make(y, columns, columns);
  params.z = epilogue::MatrixSource::make(z, columns, columns);
  params.bias = {bias, columns, false};
  params.dz = dz;
  params.sums = sums;
  params.rows = rows;
  params.columns = columns;
  for (int row = 0; row < rows; ++row) {
    if (!kGradientRunners[index](params, row)) {
      return false;
    }
  }
  return true;
}

/// Rows of softmax(z + bias) by configuration `index`.
bool softmax_rows(int index, float const* z, int rows, int columns, long row_stride, int splits,
                  long split_stride, float const* bias, float* out) {
  auto const source = epilogue::MatrixSource::make(z, columns, row_stride, splits, split_stride);
  Matrix const matrix{source, {bias, columns, false}, out, columns};
  for (int row = 0; row < rows; ++row) {
    if (!kRunners[index](matrix, row)) {
      return false;
    }
  }
  return true;
}

}  // extern "C"
