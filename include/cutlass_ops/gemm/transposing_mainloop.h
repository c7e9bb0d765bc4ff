// Our own SIMT mainloop: 128-bit loads of K-major operands, transposed into shared memory, or of
// operands that are MN-major already, and FFMAs in an order that spares the register banks
// (docs/performance.md).
#pragma once

#include <cstdint>

#include "cutlass_ops/gemm/k_major_operand.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/thread_group.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// Two stages in shared memory. While the CTA works on one, each thread carries its share of the
/// next tile over into the other: a load and, three k later, the transposing stores of what came
/// (some 800 cycles with two tiles on the SM).
///
/// Tiles that would reach over an edge are moved back inside, so that no load asks where it is: m,
/// n and k must be at least a tile.
template <class Tile, bool kVectorized, class Threads = CtaThreads,
          class OperandX_ = KMajorOperand<Tile::kM, Tile::kK, Tile::kThreads, kVectorized>,
          class OperandW_ = KMajorOperand<Tile::kN, Tile::kK, Tile::kThreads, kVectorized>>
struct TransposingMainloop {
  using OperandX = OperandX_;
  using OperandW = OperandW_;
  using TileX = typename OperandX::Tile;
  using TileW = typename OperandW::Tile;
  using Vector = typename OperandX::Vector;
  using Accumulators = typename Tile::WarpMma::FragmentC;
  using LanePolicy = typename Tile::WarpMma::Policy;

  static constexpr int kThreadM = Tile::kWarpM / LanePolicy::WarpShape::kRow;
  static constexpr int kThreadN = Tile::kWarpN / LanePolicy::WarpShape::kColumn;
  static constexpr int kSlots = OperandX::kSlots + OperandW::kSlots;
  static constexpr int kSlotSteps = 3;  ///< k from a load to its stores and the next load
  static constexpr int kStageElements = TileX::kElements + TileW::kElements;
  static constexpr std::uint32_t kStageBytes = sizeof(float) * kStageElements;

  static_assert(kSlots * kSlotSteps + 1 < Tile::kK, "the last slot is stored within the tile");
  static_assert(TileX::kElements % 4 == 0 && TileW::kElements % 4 == 0, "128-bit alignment");

  struct Params {
    typename OperandX::Steps x;
    typename OperandW::Steps weight;

    static Params make(Problem const& problem) {
      return {OperandX::Steps::make(problem.x_stride),
              OperandW::Steps::make(problem.weight_stride)};
    }
  };

  struct SharedStorage {
    alignas(16) float stages[2][kStageElements];
  };

  static Status can_implement(Problem const& problem) {
    if (problem.m < Tile::kM || problem.n < Tile::kN || problem.k < Tile::kK) {
      return {cudaErrorInvalidValue, "simt_gemm: the problem is smaller than a tile"};
    }
    return {};
  }

  CUTLASS_OPS_DEVICE static TileOrigin origin(Problem const& problem, TileCoordinate const& tile) {
    return {min(tile.tile_m * Tile::kM, problem.m - Tile::kM),
            min(tile.tile_n * Tile::kN, problem.n - Tile::kN)};
  }

  /// Adds x Wᵀ over k in [k_begin, k_end), which is not empty, onto the accumulators.
  CUTLASS_OPS_DEVICE static void run(Params const& params, Problem const& problem,
                                     TileOrigin origin, int k_begin, int k_end,
                                     SharedStorage& storage, Accumulators& accumulators) {
    // The first tile takes what is left when the others are whole.
    int const tiles = (k_end - k_begin + Tile::kK - 1) / Tile::kK;
    int const second_k = k_end - (tiles - 1) * Tile::kK;
    int const first_k = min(k_begin, problem.k - Tile::kK);
    TransposingMainloop loop(problem, origin, first_k,
                             cutlass::arch::cutlass_get_smem_pointer(&storage));
    CUTLASS_OPS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      loop.store(slot, 0, loop.load(slot, params));
    }
    if (second_k - k_begin < Tile::kK) {
      loop.x_.clear_outside(k_begin - first_k, second_k - first_k, Threads::index());
      loop.weight_.clear_outside(k_begin - first_k, second_k - first_k, Threads::index());
    }
    loop.retreat(tiles == 1 ? Tile::kK : first_k + Tile::kK - second_k, params);
    Threads::synchronize();

    std::uint32_t stage = 0;
    CUTLASS_OPS_UNROLL_BY(1)
    for (int left = tiles - 1; left >= 0; --left) {
      loop.multiply(params, stage, kStageBytes - stage, accumulators);
      stage = kStageBytes - stage;
      // The last tile is carried over once more: cheaper than asking each time whether to.
      loop.retreat(left > 1 ? 0 : Tile::kK, params);
      Threads::synchronize();
    }
  }

 private:
  OperandX x_;
  OperandW weight_;
  std::uint32_t x_fragment_;  ///< this thread's first row in stage 0, bytes
  std::uint32_t weight_fragment_;

  CUTLASS_OPS_DEVICE TransposingMainloop(Problem const& problem, TileOrigin origin, int first_k,
                                         std::uint32_t shared)
      : x_(problem.x, problem.x_stride, origin.row, first_k, shared, Threads::index()),
        weight_(problem.weight, problem.weight_stride, origin.column, first_k,
                shared + sizeof(float) * TileX::kElements, Threads::index()) {
    int const warp = Threads::index() / 32;
    constexpr int kWarpsM = Tile::kM / Tile::kWarpM;  // warps lie along m first, as in the adapter
    auto const place = LanePolicy::get_lane_layout().inverse(Threads::index() % 32);
    int const row = warp % kWarpsM * Tile::kWarpM + place.row() * 4;
    int const column = warp / kWarpsM * Tile::kWarpN + place.column() * 4;
    x_fragment_ = opaque(shared + std::uint32_t(sizeof(float)) * row);
    weight_fragment_ = opaque(shared + std::uint32_t(sizeof(float)) * (TileX::kElements + column));
  }

  CUTLASS_OPS_DEVICE Vector load(int slot, Params const& params) {
    return slot < OperandX::kSlots ? x_.load(slot, params.x)
                                   : weight_.load(slot - OperandX::kSlots, params.weight);
  }

  CUTLASS_OPS_DEVICE void store(int slot, std::uint32_t stage, Vector const& vector) const {
    if (slot < OperandX::kSlots) {
      x_.store(slot, stage, vector);
    } else {
      weight_.store(slot - OperandX::kSlots, stage, vector);
    }
  }

  CUTLASS_OPS_DEVICE void retreat(int count, Params const& params) {
    x_.retreat(count, params.x);
    weight_.retreat(count, params.weight);
  }

  /// Blocks of four rows of an operand, kStep rows apart, at one k.
  template <class OperandTile, int kStep, int kCount>
  CUTLASS_OPS_DEVICE static void load_fragment(float (&fragment)[kCount], std::uint32_t base,
                                               int k) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kCount; i += 4) {
      int const offset = OperandTile::offset(k, i / 4 * kStep);
      cutlass::arch::shared_load<16>(&fragment[i], base + std::uint32_t(sizeof(float)) * offset);
    }
  }

  CUTLASS_OPS_DEVICE void load_fragments(float (&x)[kThreadM], float (&weight)[kThreadN],
                                         std::uint32_t stage, int k) const {
    load_fragment<TileX, LanePolicy::WarpShape::kRow * 4>(x, x_fragment_ + stage, k);
    load_fragment<TileW, LanePolicy::WarpShape::kColumn * 4>(weight, weight_fragment_ + stage, k);
  }

  /// One tile of k out of stage `read`, while the next tile comes into stage `write`.
  CUTLASS_OPS_DEVICE void multiply(Params const& params, std::uint32_t read, std::uint32_t write,
                                   Accumulators& accumulators) {
    Vector carried;
    float x[2][kThreadM];
    float weight[2][kThreadN];
    load_fragments(x[0], weight[0], read, 0);
    CUTLASS_OPS_UNROLL
    for (int k = 0; k < Tile::kK; ++k) {
      if (k + 1 < Tile::kK) {
        load_fragments(x[(k + 1) % 2], weight[(k + 1) % 2], read, k + 1);
      }
      int const slot = k / kSlotSteps;
      if (k % kSlotSteps == 1 && slot <= kSlots) {
        if (slot > 0) {
          store(slot - 1, write, carried);
        }
        if (slot < kSlots) {
          carried = load(slot, params);
        }
      }
      // To and fro over the columns: every FFMA but the first finds an operand where it was.
      CUTLASS_OPS_UNROLL
      for (int i = 0; i < kThreadM; ++i) {
        CUTLASS_OPS_UNROLL
        for (int step = 0; step < kThreadN; ++step) {
          int const j = i % 2 == 0 ? step : kThreadN - 1 - step;
          float& sum = accumulators[i * kThreadN + j];
          sum = fmaf(x[k % 2][TileX::swapped(i)], weight[k % 2][TileW::swapped(j)], sum);
        }
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
