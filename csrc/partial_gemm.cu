// The GEMM without an epilogue, for split-K, for few rows and for the softmax: partial matrices.
#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/epilogue/store.h"
#include "cutlass_ops/gemm/skinny_gemm.h"
#include "instantiate.h"
#include "linear.h"

namespace cutlass_ops {
namespace {

template <int kRows, int kVector>
Status run_skinny_tile(gemm::Problem const& problem, int splits, float* partials,
                       cudaStream_t stream) {
  using Tile = gemm::SkinnyTile<kRows, kVector>;
  using Gemm = gemm::SkinnyGemm<Tile>;
  static_assert(kRows <= kKernels[kSkinny].tile_m && Tile::kTileN == kKernels[kSkinny].tile_n,
                "kKernels has another tile");
  gemm::Raster const raster{int(ceil_div(problem.m, kRows)), int(ceil_div(problem.n, Tile::kTileN)),
                            splits};
  // Shares of k stay multiples of four, so that vectors of W stay aligned.
  int const k_per_split = int(ceil_div(ceil_div(problem.k, splits), 4)) * 4;
  bool const x_vectorized =
      problem.k % 4 == 0 && problem.x_stride % 4 == 0 && epilogue::is_aligned(problem.x);
  return launch_dependent<gemm::skinny_gemm<Gemm, Tile>>(
      "skinny_gemm", raster.ctas(), Tile::kThreads, 0, stream,
      typename Gemm::Params{problem, raster, k_per_split, x_vectorized, partials});
}

template <int kVector>
Status run_skinny(gemm::Problem const& problem, int splits, float* partials, cudaStream_t stream) {
  if (problem.m == 1) {
    return run_skinny_tile<1, kVector>(problem, splits, partials, stream);
  }
  if (problem.m == 2) {
    return run_skinny_tile<2, kVector>(problem, splits, partials, stream);
  }
  if (problem.m <= 4) {
    return run_skinny_tile<4, kVector>(problem, splits, partials, stream);
  }
  if (problem.m <= 8) {
    return run_skinny_tile<8, kVector>(problem, splits, partials, stream);
  }
  return run_skinny_tile<16, kVector>(problem, splits, partials, stream);
}

}  // namespace

Status run_partial_gemm(LinearCall const& call, float* partials) {
  gemm::Problem const& problem = call.problem;
  int const splits = call.plan.splits;
  if (call.plan.kernel == kSkinny) {
    bool const vectorized = problem.weight_stride % 4 == 0 && epilogue::is_aligned(problem.weight);
    return vectorized ? run_skinny<4>(problem, splits, partials, call.stream)
                      : run_skinny<1>(problem, splits, partials, call.stream);
  }
  std::int64_t const elements = std::int64_t{problem.m} * problem.n;
  auto const sink = epilogue::Store::make(partials, problem.n, 1, elements);
  return run_kernel(call, epilogue::Chain<>{}, sink, 1);
}

}  // namespace cutlass_ops
