// Mainloop of "fp16x3" for few columns: x Wᵀ with x read once, as float.
//
// Where W has few rows the product is bound by the reading of x. So x is not split by a kernel of
// its own, which would write it and read it again, but in the registers of the consumers, which
// feed the tensor cores from there; W's halves are there before. A row's scale is that of its
// largest element so far (row_exponent.h), and all products are promoted to fp32 with it, once for
// a tile of k. Then one accumulator is enough, if the mixed products, 2^11 times smaller, come
// first: the tensor cores truncate where they add, and of sums as small that is nothing.
//
// While a tile is multiplied the next one is read from shared memory and its exponents are found.
#pragma once

#include "cute/tensor.hpp"

#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/pipeline/pipeline.hpp"

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/balanced_tile.h"
#include "cutlass_ops/gemm/float_fragment.h"
#include "cutlass_ops/gemm/fp16_pairs.h"
#include "cutlass_ops/gemm/multiply_steps.h"
#include "cutlass_ops/gemm/operand_tile.h"
#include "cutlass_ops/gemm/problem.h"
#include "cutlass_ops/gemm/row_exponent.h"
#include "cutlass_ops/status.h"

namespace cutlass_ops {
namespace gemm {

/// A CTA's tile, and how it is fed. kM rows share W's halves, which come from L2 once for each row
/// tile: kN / kM times as many bytes as x.
template <int kM_, int kN_, int kK_, int kStages_, int kCtasPerSm_>
struct Fp16x3NarrowTile {
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kK = kK_;
  static constexpr int kStages = kStages_;
  static constexpr int kCtasPerSm = kCtasPerSm_;
  static constexpr int kGroupThreads = 128;
  static constexpr int kGroups = kM / 64;  ///< a warpgroup for 64 rows
  static constexpr int kConsumers = kGroups * kGroupThreads;
  static constexpr int kThreads = kConsumers + kGroupThreads;
  static constexpr int kLaneRows = 2;  ///< from four lanes of a warp to the next four
  static constexpr int kHalfRows = 1;  ///< from a lane's first row to its second
  static constexpr int kRowLanes = 4;  ///< that take a row through the epilogue: few columns
  static constexpr int kProducerRegisters = 24;

  static constexpr int kLaunchRegisters = 65536 / (kThreads * kCtasPerSm) / 8 * 8;

  /// What the producer leaves of the registers that a CTA has at launch, for each consumer.
  static constexpr int consumer_registers() {
    int const left = (kLaunchRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;
    return left < 240 ? left : 240;
  }
  static constexpr int kConsumerRegisters = consumer_registers();

  static_assert(kM % 64 == 0 && kM <= 256, "64 rows to a warpgroup, a box of TMA");
  static_assert(kK % 32 == 0, "boxes of 32 floats");
  static_assert(kLaunchRegisters <= kConsumerRegisters, "the consumers take, they do not give");
};

/// x as it was given.
struct FloatRows {
  float const* elements;
  std::int64_t stride;  ///< elements between rows
  int rows;
  int columns;
  Fp16Scale* scales;  ///< [splits, rows]: of each share of k, where a row is not finite there
};

template <class Tile_>
struct Fp16x3NarrowMainloop {
  using Tile = Tile_;
  using Operand = FloatRows;  ///< x
  using TileX = OperandTile<float, 1, Tile::kM, Tile::kK, Tile::kStages>;
  using TileW = Fp16HalvesTile<Tile::kN, Tile::kK, Tile::kStages>;
  using Element = typename TileW::Element;
  using Fragment = FloatFragment<TileX, Tile::kK>;
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::rs_op_selector<Element, Element, float, TileShape, cute::GMMA::Major::K,
                                 cute::GMMA::Major::K>(),
      cute::Layout<cute::Shape<cute::Int<Tile::kGroups>, cute::_1, cute::_1>>{}));

  using Pipeline = cutlass::PipelineTmaAsync<Tile::kStages>;
  using PipelineState = typename Pipeline::PipelineState;
  static constexpr int kSteps = Tile::kK / 16;  ///< of the tensor cores to a tile of k
  static constexpr int kStageBytes = TileX::kStageBytes + TileW::kStageBytes;

  struct Params {
    typename TileX::Params x;
    typename TileW::Params w;
    float const* factors;  ///< of the columns
    int const* spread;     ///< whether there are any
    Fp16Scale* x_scales;

    static Params make(FloatRows const& x, Fp16Pairs const& w) {
      return {TileX::Params::make(x.elements, x.rows, x.columns, x.stride, x.stride),
              TileW::Params::make(w), w.factors, w.spread, x.scales};
    }
  };

  /// TMA's terms.
  static Status can_implement(FloatRows const& x) {
    if (!epilogue::is_aligned(x.elements) || x.stride <= 0 || x.stride % 4 != 0 ||
        x.stride >= std::int64_t{1} << 38) {
      return {cudaErrorInvalidValue, "fp16x3 GEMM: rows of x are not 16-byte aligned"};
    }
    return {};
  }

  struct SharedStorage {
    typename TileX::SharedStorage x;
    typename TileW::SharedStorage w;
  };

  using Accumulators = decltype(cute::partition_fragment_C(
      TiledMma{}, cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>>{}));
  using Halves = decltype(cute::make_tensor<Element>(cute::partition_shape_A(
      TiledMma{}, cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kK>>{})));

  /// What fills, called by one thread with (barrier, tile of k, stage), a stage.
  CUTLASS_OPS_DEVICE static auto source(Params const& params, int tile_m, int tile_n,
                                        SharedStorage& storage) {
    auto const bring_x = TileX::source(params.x, tile_m, storage.x);
    auto const bring_w = TileW::source(params.w, tile_n, storage.w);
    return [bring_x, bring_w](auto& barrier, int k, int stage) {
      bring_x(barrier, k, 0, stage);
      bring_w(barrier, k, 0, stage);
      bring_w(barrier, k, 1, stage);
    };
  }

  /// By the consumers: `sum` = the products of the tiles of k in [begin, end), under the scales
  /// that it returns. They are written, too: whoever repairs asks for them. `meanwhile()` is done
  /// while the last ones are multiplied.
  template <class Meanwhile>
  CUTLASS_OPS_DEVICE static RowScales multiply(Params const& params, Pipeline& pipeline,
                                               PipelineState& state, TileCoordinate const& place,
                                               int begin, int end, int thread,
                                               SharedStorage& storage, Accumulators& sum,
                                               Meanwhile meanwhile) {
    using namespace cute;
    using Balanced = BalancedTile<TileX, Tile::kK>;
    bool const balanced = *params.spread != 0;
    TiledMma mma;
    auto slice = mma.get_slice(0);  // W is the same to every warpgroup
    Tensor w = slice.make_fragment_B(slice.partition_B(TileW::tensor(storage.w)));
    auto const places = Fragment::Places::of(thread);
    int const least = balanced ? Balanced::kLeast : RowExponent::kLeast;
    RowExponent exponents[2] = {{least}, {least}};
    Fragment x;
    Halves high;
    Halves low;
    Accumulators part;  // of the tile before
    float rescale[2] = {1.0f, 1.0f};
    clear(sum);
    clear(part);
    PipelineState done = state;
    CUTLASS_OPS_UNROLL_BY(1)
    for (int k = begin; k < end; ++k) {
      pipeline.consumer_wait(state);
      float* const tile = storage.x.elements + state.index() * TileX::kStageElements;
      float next_rescale[2];
      float x_scale[2] = {1.0f, 1.0f};
      if (balanced) {
        int const column = k * Tile::kK;
        Balanced{params.factors + column, params.x.columns - column, tile, thread}.scale(
            exponents, next_rescale);
      }
      x.load(tile, places);
      if (!balanced) {
        CUTLASS_OPS_UNROLL
        for (int half = 0; half < 2; ++half) {
          next_rescale[half] = exponents[half].raise(x.exponent(half));
          x_scale[half] = power_of_two(exponents[half].scale_exponent());
        }
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(part);
      if (k > begin) {
        pipeline.consumer_release(done);
        ++done;
      }
      promote(sum, part, rescale);
      x.split(x_scale, high, low);
      auto const w_high = w(_, _, _, 0, state.index());
      auto const w_low = w(_, _, _, 1, state.index());
      warpgroup_fence_operand(part);
      warpgroup_arrive();
      mma.accumulate_ = GMMA::ScaleOut::Zero;
      multiply_steps<kSteps>(mma, high, w_low, 0, part);
      multiply_steps<kSteps>(mma, low, w_high, 0, part);
      multiply_steps<kSteps>(mma, high, w_high, 0, part);
      warpgroup_commit_batch();
      rescale[0] = next_rescale[0];
      rescale[1] = next_rescale[1];
      ++state;
    }
    meanwhile();
    warpgroup_wait<0>();
    warpgroup_fence_operand(part);
    if (begin < end) {
      pipeline.consumer_release(done);
    }
    promote(sum, part, rescale);
    RowScales const scales{exponents[0].back(), exponents[1].back()};
    if (place.tile_n == 0 && thread % 4 == 0) {
      write(params, scales, place, thread);
    }
    return scales;
  }

 private:
  /// `sum` under the scales before those of `part`, += `part`, under its own.
  CUTLASS_OPS_DEVICE static void promote(Accumulators& sum, Accumulators const& part,
                                         float const (&rescale)[2]) {
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < cute::size(sum); ++i) {
      sum(i) = fmaf(sum(i), rescale[i / 2 % 2], part(i));
    }
  }

  /// Each row's, by one CTA for each share of k.
  CUTLASS_OPS_DEVICE static void write(Params const& params, RowScales const& scales,
                                       TileCoordinate const& place, int thread) {
    CUTLASS_OPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = place.tile_m * Tile::kM + Fragment::Places::row(thread, half);
      if (row < params.x.rows) {
        params.x_scales[std::int64_t{place.split} * params.x.rows + row] = scales.of[half];
      }
    }
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
