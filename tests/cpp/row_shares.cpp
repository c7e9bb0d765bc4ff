// The threads of a row of the softmax one after another, for tests/test_row_shares.py: which of
// them holds which column, and what it reads and writes. The very code that runs on the GPU, but
// for the reductions over threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cutlass_ops/kernel/row_rest.h"
#include "cutlass_ops/kernel/row_share.h"

using namespace cutlass_ops;
using epilogue::Chain;
using kernel::RegisterRows;
using kernel::RowCut;
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
  RowCut const cut =
      Rows::kHasEdges ? RowCut::make(out, matrix.columns) : RowCut{0, matrix.columns, 0};
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

}  // namespace

extern "C" {

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
