// Where the SIMT adapter stages accumulators, for tests/test_host_functors.py: compiled by nvcc,
// run on the host.
#include "cutlass_ops/gemm/simt_epilogue.h"

using namespace cutlass_ops::gemm;

namespace {

/// For each thread and accumulator of the tile, in the order of CUTLASS's fragment: the row and
/// column of the tile where CUTLASS's own warp iterator over C puts it, and where the adapter
/// stages it.
template <class Tile>
int coordinates(int* out) {
  using Staging = SimtStaging<Tile>;
  using Lane = typename Staging::LanePolicy;
  constexpr int kThreadRows = Tile::kWarpM / Staging::kLaneRows;
  constexpr int kThreadColumns = Tile::kWarpN / Staging::kLaneColumns;
  int count = 0;
  for (int thread = 0; thread < Tile::kThreads; ++thread) {
    int const warp = thread / 32;
    int const warp_m = warp % Staging::kWarpsM;
    int const warp_n = warp / Staging::kWarpsM;
    auto const place = Lane::get_lane_layout().inverse(thread % 32);
    for (int i = 0; i < kThreadRows; ++i) {
      for (int j = 0; j < kThreadColumns; ++j, ++count) {
        // CUTLASS: MmaSimtTileIterator walks blocks of LaneMmaShape, a warp's width of lanes apart.
        int const row =
            warp_m * Tile::kWarpM + place.row() * 4 + i / 4 * (Staging::kLaneRows * 4) + i % 4;
        int const column = warp_n * Tile::kWarpN + place.column() * 4 +
                           j / 4 * (Staging::kLaneColumns * 4) + j % 4;
        // The adapter: accumulator row i is staged in slice i / 4, at this row of the slice.
        int const staged = warp_m * Staging::kWarpRows + place.row() * Staging::kBlock + i % 4;
        *out++ = row;
        *out++ = column;
        *out++ = Staging::tile_row(i / 4, staged);
      }
    }
  }
  return count;
}

}  // namespace

extern "C" {
int coordinates_64x64(int* out) { return coordinates<Simt64x64>(out); }
int coordinates_128x64(int* out) { return coordinates<Simt128x64>(out); }
int coordinates_128x128(int* out) { return coordinates<Simt128x128>(out); }
int coordinates_128x256(int* out) { return coordinates<Simt128x256>(out); }
}
