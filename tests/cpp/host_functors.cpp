// The steps, sinks and monoids of the epilogues on the host, for tests/test_host_functors.py. No
// CUDA is needed: every functor is __host__ __device__, and this is the very code that runs on the
// GPU.
#include <cmath>

#include "cutlass_ops/epilogue/avg_pool.h"
#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/matrix_source.h"
#include "cutlass_ops/epilogue/relu.h"
#include "cutlass_ops/epilogue/row_max.h"
#include "cutlass_ops/epilogue/row_reduce.h"
#include "cutlass_ops/epilogue/row_sum.h"
#include "cutlass_ops/epilogue/scale.h"
#include "cutlass_ops/epilogue/softmax_gelu.h"
#include "cutlass_ops/epilogue/store.h"

using namespace cutlass_ops::epilogue;

namespace {

/// Row by row, slot by slot, as the adapters do; `slot_columns` output columns make a slot.
template <class Chain, class Sink, int kWidth = fragment_width<Chain>()>
void run(MatrixSource const& source, int rows, Arguments const& arguments, int slot_columns,
         float* out) {
  Reader reader(arguments);
  Chain const chain = Chain::make(reader, source.columns);
  int const columns = source.columns / chain.window();
  int const slots = (columns + slot_columns - 1) / slot_columns;
  Sink const sink = Sink::make(out, columns, slots);
  for (int row = 0; row < rows; ++row) {
    for (int slot = 0; slot < slots; ++slot) {
      typename Sink::State state;
      int const end = std::min(columns, (slot + 1) * slot_columns);
      for (int column = slot * slot_columns; column < end; column += kWidth) {
        sink.visit(state, chain.template evaluate<kWidth>(source, row, column), row, column,
                   end - column);
      }
      if constexpr (Sink::kReduces) {
        sink.partials[row * slots + slot] = state.value;
      }
    }
  }
}

using Runner = void (*)(MatrixSource const&, int, Arguments const&, int, float*);

constexpr Runner kRunners[] = {
    run<Chain<Bias>, Store>,
    run<Chain<Bias, Gelu>, Store>,
    run<Chain<Bias, GeluTanh>, Store>,
    run<Chain<Bias, Relu>, Store>,
    run<Chain<Bias, AvgPool, Gelu, Scale>, Store>,
    run<Chain<Bias, AvgPool, Gelu, Scale>, RowReduce<MaxMonoid>>,
    run<Chain<Bias>, RowReduce<SumMonoid>>,
    run<Chain<Scale, AvgPool, AvgPool>, Store>,
    run<Chain<SoftmaxGelu>, Store>,
};

}  // namespace

extern "C" {

/// Description `index` over the sum of `splits` matrices [rows, columns] at z, `row_stride` apart.
void run_description(int index, float const* z, int rows, int columns, long row_stride, int splits,
                     float const* bias, double const* params, int param_count, int slot_columns,
                     float* out) {
  Arguments const arguments{bias, params, param_count};
  auto const source = MatrixSource::make(z, columns, row_stride, splits, rows * row_stride);
  kRunners[index](source, rows, arguments, slot_columns, out);
}

/// GELU's derivative, of the tanh form or of the other, of `count` numbers.
void gelu_derivatives(bool tanh, float const* x, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    out[i] = tanh ? GeluTanh::derivative(x[i]) : Gelu::derivative(x[i]);
  }
}

float combine_max(float a, float b) { return MaxMonoid::combine(a, b); }
float max_identity() { return MaxMonoid::identity(); }

}  // extern "C"
