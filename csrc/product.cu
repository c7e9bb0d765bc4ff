#include "product.h"

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/epilogue/store.h"
#include "cutlass_ops/gemm/mn_major_operand.h"
#include "cutlass_ops/gemm/stream_runner.h"
#include "cutlass_ops/gemm/transposing_mainloop.h"
#include "cutlass_ops/gemm/transposing_tile.h"

namespace cutlass_ops {
namespace {

using Tile = gemm::TransposingTile;
using Threads = gemm::GroupThreads<Tile::kThreads>;
using KMajor = gemm::KMajorOperand<Tile::kM, Tile::kK, Tile::kThreads, true>;
using MnMajor = gemm::MnMajorOperand<Tile::kM, Tile::kK, Tile::kThreads>;
static_assert(Tile::kM == Tile::kN, "either operand may be either");

template <class OperandA>
Status run(ProductCall const& call) {
  using Mainloop = gemm::TransposingMainloop<Tile, true, Threads, OperandA, MnMajor>;
  using Gemm = gemm::StreamGemm<Mainloop, Tile, epilogue::Chain<>, epilogue::Store>;
  gemm::Problem const problem{call.a, call.b, call.m, call.n, call.k, call.a_stride, call.b_stride};
  auto const sink = epilogue::Store::make(call.out, call.n, 1);
  return gemm::StreamRunner<Gemm>::run(problem, epilogue::Chain<>{}, sink, call.ctas, call.exchange,
                                       call.stream);
}

}  // namespace

bool ProductCall::runs() const {
  bool const vectors = a_stride % 4 == 0 && b_stride % 4 == 0 && epilogue::is_aligned(a) &&
                       epilogue::is_aligned(b) && n % 4 == 0 && (a_transposed ? m : k) % 4 == 0;
  return vectors && m >= Tile::kM && n >= Tile::kN && k >= Tile::kK;
}

Status run_product(ProductCall const& call) {
  if (!call.runs()) {
    return {cudaErrorInvalidValue, "product: smaller than a tile, or not 16-byte aligned"};
  }
  return call.a_transposed ? run<MnMajor>(call) : run<KMajor>(call);
}

}  // namespace cutlass_ops
