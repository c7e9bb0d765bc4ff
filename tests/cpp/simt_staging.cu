// The SIMT adapter's staging, for tests/test_host_gemm.py: compiled by nvcc, run on the host.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "cutlass_ops/gemm/simt_epilogue.h"
#include "cutlass_ops/gemm/simt_tile.h"
#include "cutlass_ops/gemm/transposing_tile.h"

using namespace cutlass_ops::gemm;

namespace {

/// Takes `tile` [kM, kN] through the adapter into `out` [kM, kN]. CUTLASS's own iterator over the
/// warp operator's C says which elements are the accumulators of a thread; everything after that is
/// what the kernel calls. What no thread stages is left NaN.
template <class Tile>
void stage_tile(float* tile, float* out) {
  using Staging = SimtStaging<Tile>;
  using IteratorC = typename Tile::WarpMma::IteratorC;
  std::vector<typename Tile::WarpMma::FragmentC> fragments(Tile::kThreads);
  std::vector<typename Staging::AccumulatorRows> iterators;
  for (int thread = 0; thread < Tile::kThreads; ++thread) {
    IteratorC truth({tile, cutlass::layout::RowMajor(Tile::kN)}, thread % 32);
    int const warp = thread / 32;  // placed as in the constructor of CUTLASS's MmaPipelined
    constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
    truth.add_tile_offset({warp % kWarpsM, warp / kWarpsM});
    truth.load(fragments[thread]);
    iterators.emplace_back(fragments[thread]);
  }
  for (int slice = 0; slice < Staging::kSlices; ++slice) {
    alignas(16) float staged[Staging::kRows * Staging::kPitch];
    std::fill(std::begin(staged), std::end(staged), NAN);
    for (int thread = 0; thread < Tile::kThreads; ++thread) {
      auto const place = Staging::place(thread);
      float* const destination = staged + place.row() * Staging::kPitch + place.column();
      for (int i = 0; i < Staging::kBlock; ++i, ++iterators[thread]) {
        Staging::stage(iterators[thread], destination + i * Staging::kPitch);
      }
    }
    for (int row = 0; row < Staging::kRows; ++row) {
      float const* const source = staged + row * Staging::kPitch;
      std::copy(source, source + Tile::kN, out + Staging::tile_row(slice, row) * Tile::kN);
    }
  }
}

}  // namespace

extern "C" {
void stage_64x64(float* tile, float* out) { stage_tile<Simt64x64>(tile, out); }
void stage_128x64(float* tile, float* out) { stage_tile<Simt128x64>(tile, out); }
void stage_128x128(float* tile, float* out) { stage_tile<Simt128x128>(tile, out); }
void stage_128x256(float* tile, float* out) { stage_tile<Simt128x256>(tile, out); }
void stage_128x128x32(float* tile, float* out) { stage_tile<TransposingTile>(tile, out); }
}
