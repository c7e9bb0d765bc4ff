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
#include "cutlass_ops/gemm/fp16_scale.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/stream_k.h"

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

/// Of rows whose largest elements have these exponents.
float fp16_scale_back(float z, int x, int w) {
  using cutlass_ops::gemm::Fp16Scale;
  return cutlass_ops::gemm::scale_back(z, Fp16Scale::of_exponent(x).inverse(),
                                       Fp16Scale::of_exponent(w).inverse());
}

float fp16_scale_back_none(float z, bool x_has_nan, int w) {
  using cutlass_ops::gemm::Fp16Scale;
  return cutlass_ops::gemm::scale_back(z, Fp16Scale::none(x_has_nan),
                                       Fp16Scale::of_exponent(w).inverse());
}

/// For a row whose largest magnitude is `largest`: what becomes of it, of that when it is taken
/// back, and the two factors.
void fp16_scale(float largest, float* out) {
  auto const scale = cutlass_ops::gemm::Fp16Scale::of(largest);
  out[0] = scale.apply(largest);
  out[1] = scale.inverse().apply(out[0]);
  out[2] = scale.first;
  out[3] = scale.second;
}

/// Fills (tile_m, tile_n, split) of every CTA of a raster.
void raster(int tiles_m, int tiles_n, int splits, int* out) {
  cutlass_ops::gemm::Raster const raster{tiles_m, tiles_n, splits};
  for (unsigned cta = 0; cta < raster.ctas(); ++cta) {
    auto const tile = raster.locate(cta);
    *out++ = tile.tile_m;
    *out++ = tile.tile_n;
    *out++ = tile.split;
  }
}

/// Whether an item of stream-K has a piece after `done` others, and the piece.
bool stream_piece(int tiles, int blocks, int ctas, int item, int done, int* out) {
  cutlass_ops::gemm::StreamPiece piece{};
  auto const cut = cutlass_ops::gemm::StreamK::make(tiles, blocks, ctas);
  bool const any = item < cut.items() && cut.piece(item, done, piece);
  out[0] = piece.tile;
  out[1] = piece.begin;
  out[2] = piece.end;
  out[3] = piece.slot;
  return any;
}

int stream_items(int tiles, int blocks, int ctas) {
  return cutlass_ops::gemm::StreamK::make(tiles, blocks, ctas).items();
}

/// The slots that the CTA which completes a tile adds up; returns how many.
int stream_slots(int tiles, int blocks, int ctas, int tile, int* out) {
  auto const cut = cutlass_ops::gemm::StreamK::make(tiles, blocks, ctas);
  int const count = cut.published(tile);
  for (int index = 0; index < count; ++index) {
    out[index] = cut.slot(tile, index);
  }
  return count;
}

}  // extern "C"
