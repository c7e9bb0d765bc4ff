// Mainloop of "fp16x3": x Wᵀ of operands in two fp16 halves, on the tensor cores of Hopper.
//
// (xh + xl)(wh + wl) without xl wl, which is below a rounding of fp32. The tensor cores truncate
// where they add, so that a long accumulation drifts towards zero: the products of the high halves
// are added to fp32 registers every kPromotion columns of k. The mixed products, 2^11 times
// smaller, have accumulators of their own, in which the drift does not matter; while they are
// multiplied, the high ones are added, so that the tensor cores do not wait.
#pragma once

#include "cute/tensor.hpp"

#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/pipeline/pipeline.hpp"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/multiply_steps.h"
#include "cutlass_ops/gemm/operand_tile.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// A CTA's tile, and how it is fed.
template <int kM_, int kN_, int kK_, int kStages_, int kPromotion_>
struct Fp16x3Tile {
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kK = kK_;
  static constexpr int kStages = kStages_;
  static constexpr int kPromotion = kPromotion_;
  static constexpr int kGroupThreads = 128;
  static constexpr int kConsumers = 2 * kGroupThreads;  ///< a warpgroup for 64 rows
  static constexpr int kThreads = kConsumers + kGroupThreads;
  static constexpr int kCtasPerSm = 1;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static constexpr int kLaneRows = 1;   ///< from four lanes of a warp to the next four
  static constexpr int kHalfRows = 8;   ///< from a lane's first row to its second
  static constexpr int kRowLanes = 32;  ///< that take a row through the epilogue
  static_assert(kM == 128, "64 rows to a warpgroup");
  static_assert(kK % kPromotion == 0 && kPromotion % 16 == 0, "whole steps of the tensor cores");
};

template <class Tile_>
struct Fp16x3Mainloop {
  using Tile = Tile_;
  using Operand = Fp16Pairs;  ///< x
  using TileX = Fp16HalvesTile<Tile::kM, Tile::kK, Tile::kStages>;
  using TileW = Fp16HalvesTile<Tile::kN, Tile::kK, Tile::kStages>;
  using Element = typename TileX::Element;
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, TileShape, cute::GMMA::Major::K,
                                 cute::GMMA::Major::K>(),
      cute::Layout<cute::Shape<cute::_2, cute::_1, cute::_1>>{}));

  using Pipeline = cutlass::PipelineTmaAsync<Tile::kStages>;
  using PipelineState = typename Pipeline::PipelineState;
  static constexpr int kSteps = Tile::kPromotion / 16;  ///< of the tensor cores to a promotion
  static constexpr int kStageBytes = TileX::kStageBytes + TileW::kStageBytes;

  struct Params {
    typename TileX::Params x;
    typename TileW::Params w;
    Fp16Scale const* x_scales;

    static Params make(Fp16Pairs const& x, Fp16Pairs const& w) {
      return {TileX::Params::make(x), TileW::Params::make(w), x.scales};
    }
  };

  /// Halves are as TMA wants them.
  static Status can_implement(Fp16Pairs const&) { return {}; }

  struct SharedStorage {
    typename TileX::SharedStorage x;
    typename TileW::SharedStorage w;
  };

  using Accumulators = decltype(cute::partition_fragment_C(
      TiledMma{}, cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>>{}));

  /// What fills, called by one thread with (barrier, tile of k, stage), a stage.
  CUTLASS_OPS_DEVICE static auto source(Params const& params, int tile_m, int tile_n,
                                        SharedStorage& storage) {
    auto const bring_x = TileX::source(params.x, tile_m, storage.x);
    auto const bring_w = TileW::source(params.w, tile_n, storage.w);
    return [bring_x, bring_w](auto& barrier, int k, int stage) {
      CUTLASS_OPS_UNROLL
      for (int half = 0; half < 2; ++half) {
        bring_x(barrier, k, half, stage);
        bring_w(barrier, k, half, stage);
      }
    };
  }

  /// By the consumers: `sum` = the products of the tiles of k in [begin, end). `meanwhile()` is
  /// done while the last mixed ones are multiplied, when the registers of the high ones are free.
  template <class Meanwhile>
  CUTLASS_OPS_DEVICE static RowScales multiply(Params const& params, Pipeline& pipeline,
                                               PipelineState& state, TileCoordinate const& place,
                                               int begin, int end, int thread,
                                               SharedStorage& storage, Accumulators& sum,
                                               Meanwhile meanwhile) {
    using namespace cute;
    TiledMma mma;
    int const group = __shfl_sync(0xffffffffu, thread / Tile::kGroupThreads, 0);
    int const tiles = end - begin;
    auto slice = mma.get_slice(group * Tile::kGroupThreads);
    Tensor x = slice.make_fragment_A(slice.partition_A(TileX::tensor(storage.x)));
    Tensor w = slice.make_fragment_B(slice.partition_B(TileW::tensor(storage.w)));
    Accumulators high;
    Accumulators low;
    clear(sum);
    auto low_scale = GMMA::ScaleOut::Zero;
    PipelineState done = state;
    CUTLASS_OPS_UNROLL_BY(1)
    for (int tile = 0; tile < tiles; ++tile) {
      pipeline.consumer_wait(state);
      auto const x_high = x(_, _, _, 0, state.index());
      auto const x_low = x(_, _, _, 1, state.index());
      auto const w_high = w(_, _, _, 0, state.index());
      auto const w_low = w(_, _, _, 1, state.index());
      CUTLASS_OPS_UNROLL
      for (int step = 0; step < size<2>(x_high); step += kSteps) {
        warpgroup_fence_operand(high);
        warpgroup_fence_operand(low);
        warpgroup_arrive();
        mma.accumulate_ = GMMA::ScaleOut::Zero;
        multiply_steps<kSteps>(mma, x_high, w_high, step, high);
        warpgroup_commit_batch();
        mma.accumulate_ = low_scale;
        multiply_steps<kSteps>(mma, x_high, w_low, step, low);
        multiply_steps<kSteps>(mma, x_low, w_high, step, low);
        low_scale = GMMA::ScaleOut::One;
        warpgroup_commit_batch();
        warpgroup_wait<1>();  // for the products of the high halves, and all that came before them
        warpgroup_fence_operand(high);
        if (step == 0 && tile > 0) {
          pipeline.consumer_release(done);
          ++done;
        }
        add(sum, high);
      }
      ++state;
    }
    RowScales const scales = stored_scales(params, place, thread);
    meanwhile();
    warpgroup_wait<0>();
    warpgroup_fence_operand(low);
    if (tiles > 0) {
      pipeline.consumer_release(done);
      add(sum, low);
    }
    return scales;
  }

 private:
  /// Where they were left when x was split. Rows beyond the last are not looked at.
  CUTLASS_OPS_DEVICE static RowScales stored_scales(Params const& params,
                                                    TileCoordinate const& place, int thread) {
    int const row = place.tile_m * Tile::kM + thread / 32 * 16 + thread % 32 / 4;
    int const last = params.x.rows - 1;
    return {params.x_scales[min(row, last)], params.x_scales[min(row + Tile::kHalfRows, last)]};
  }

  CUTLASS_OPS_DEVICE static void add(Accumulators& sum, Accumulators const& part) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < cute::size(sum); ++i) {
      sum(i) += part(i);
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
