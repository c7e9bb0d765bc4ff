// Scales of halves, raster and stream-K on the host, for tests/test_host_gemm.py. No CUDA is
// needed: this is the very code that runs on the GPU.
#include "cutlass_ops/gemm/fp16_scale.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/stream_k.h"

extern "C" {

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
