// Mainloop of "fp16x3": x Wᵀ of operands in two fp16 halves, on the tensor cores of Hopper.
//
// (xh + xl)(wh + wl) without xl wl, which is below a rounding of fp32. The tensor cores truncate
// where they add, so that a long accumulation drifts towards zero: the products of the high halves
// are added to fp32 registers every kPromotion columns of k. The mixed products, 2^11 times
// smaller, have accumulators of their own, in which the drift does not matter; while they are
// multiplied, the high ones are added, so that the tensor cores do not wait.
#pragma once

#include "cute/tensor.hpp"

#include "cute/arch/cluster_sm90.hpp"
#include "cute/atom/copy_traits_sm90_tma.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/gemm/collective/builders/sm90_common.inl"
#include "cutlass/numeric_types.h"
#include "cutlass/pipeline/pipeline.hpp"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/fp16_pairs.h"

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
  static_assert(kM == 128, "64 rows to a warpgroup");
  static_assert(kK % kPromotion == 0 && kPromotion % 16 == 0, "whole steps of the tensor cores");
};

template <class Tile>
struct Fp16x3Mainloop {
  using Element = cutlass::half_t;
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using ClusterShape = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, TileShape, cute::GMMA::Major::K,
                                 cute::GMMA::Major::K>(),
      cute::Layout<cute::Shape<cute::_2, cute::_1, cute::_1>>{}));
  using Atom = decltype(cutlass::gemm::collective::detail::ss_smem_selector<
                        cute::GMMA::Major::K, Element, cute::Int<Tile::kM>, cute::Int<Tile::kK>>());

  /// Row, k, half, stage.
  template <int kRows>
  using SharedLayout = decltype(cute::tile_to_shape(
      Atom{}, cute::make_shape(cute::Int<kRows>{}, cute::Int<Tile::kK>{}, cute::_2{},
                               cute::Int<Tile::kStages>{})));
  using LayoutX = SharedLayout<Tile::kM>;
  using LayoutW = SharedLayout<Tile::kN>;
  using Copy = cute::SM90_TMA_LOAD;
  using Stride = cute::Stride<std::int64_t, cute::_1, std::int64_t>;

  using Pipeline = cutlass::PipelineTmaAsync<Tile::kStages>;
  using PipelineState = typename Pipeline::PipelineState;
  static constexpr int kSteps = Tile::kPromotion / 16;  ///< of the tensor cores to a promotion
  static constexpr int kStageBytes = 2 * (Tile::kM + Tile::kN) * Tile::kK * int(sizeof(Element));

  static auto matrix(Fp16Pairs const& pairs) {
    return cute::make_tensor(
        cute::make_gmem_ptr(reinterpret_cast<Element const*>(pairs.halves)),
        cute::make_layout(cute::make_shape(pairs.rows, pairs.columns, 2),
                          Stride{pairs.pitch, {}, std::int64_t{pairs.rows} * pairs.pitch}));
  }

  static auto copy_x(Fp16Pairs const& x) {
    return cute::make_tma_copy_A_sm90(Copy{}, matrix(x), LayoutX{}(cute::_, cute::_, 0, 0),
                                      TileShape{}, ClusterShape{});
  }

  static auto copy_w(Fp16Pairs const& w) {
    return cute::make_tma_copy_B_sm90(Copy{}, matrix(w), LayoutW{}(cute::_, cute::_, 0, 0),
                                      TileShape{}, ClusterShape{});
  }

  struct Params {
    decltype(copy_x(Fp16Pairs{})) x;
    decltype(copy_w(Fp16Pairs{})) w;
    int m, n, k;

    static Params make(Fp16Pairs const& x, Fp16Pairs const& w) {
      return {copy_x(x), copy_w(w), x.rows, w.rows, x.columns};
    }
  };

  struct SharedStorage {
    alignas(1024) Element x[cute::cosize_v<LayoutX>];
    alignas(1024) Element w[cute::cosize_v<LayoutW>];
  };

  using Accumulators = decltype(cute::partition_fragment_C(
      TiledMma{}, cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>>{}));

  CUTLASS_OPS_DEVICE static void prefetch(Params const& params) {
    cute::prefetch_tma_descriptor(params.x.get_tma_descriptor());
    cute::prefetch_tma_descriptor(params.w.get_tma_descriptor());
  }

  /// By one thread: the tiles of k in [begin, end) of tile_m and tile_n.
  CUTLASS_OPS_DEVICE static void load(Params const& params, Pipeline& pipeline,
                                      PipelineState& state, int tile_m, int tile_n, int begin,
                                      int end, SharedStorage& storage) {
    using namespace cute;
    Tensor shared_x = make_tensor(make_smem_ptr(storage.x), LayoutX{});
    Tensor shared_w = make_tensor(make_smem_ptr(storage.w), LayoutW{});
    Tensor all_x = params.x.get_tma_tensor(make_shape(params.m, params.k, 2));
    Tensor all_w = params.w.get_tma_tensor(make_shape(params.n, params.k, 2));
    Tensor tiles_x = local_tile(all_x, TileShape{}, make_coord(_, _, _), Step<_1, X, _1>{});
    Tensor tiles_w = local_tile(all_w, TileShape{}, make_coord(_, _, _), Step<X, _1, _1>{});
    auto slice_x = params.x.get_slice(0);
    auto slice_w = params.w.get_slice(0);
    Tensor from_x = slice_x.partition_S(tiles_x(_, _, tile_m, _, _));  // copy, m, k, tile, half
    Tensor from_w = slice_w.partition_S(tiles_w(_, _, tile_n, _, _));
    Tensor to_x = slice_x.partition_D(shared_x);  // copy, m, k, half, stage
    Tensor to_w = slice_w.partition_D(shared_w);
    CUTLASS_OPS_UNROLL_BY(1)
    for (int tile = begin; tile < end; ++tile) {
      pipeline.producer_acquire(state);
      auto* const barrier = pipeline.producer_get_barrier(state);
      int const stage = state.index();
      CUTLASS_OPS_UNROLL
      for (int half = 0; half < 2; ++half) {
        copy(params.x.with(*barrier), from_x(_, _, _, tile, half), to_x(_, _, _, half, stage));
        copy(params.w.with(*barrier), from_w(_, _, _, tile, half), to_w(_, _, _, half, stage));
      }
      ++state;
    }
  }

  /// By the consumers: `sum` = the products of so many tiles of k. `meanwhile()` is done while the
  /// last mixed ones are multiplied, when the registers of the high ones are free.
  template <class Meanwhile>
  CUTLASS_OPS_DEVICE static void multiply(Pipeline& pipeline, PipelineState& state, int tiles,
                                          int thread, SharedStorage& storage, Accumulators& sum,
                                          Meanwhile meanwhile) {
    using namespace cute;
    TiledMma mma;
    int const group = __shfl_sync(0xffffffffu, thread / Tile::kGroupThreads, 0);
    auto slice = mma.get_slice(group * Tile::kGroupThreads);
    Tensor x =
        slice.make_fragment_A(slice.partition_A(make_tensor(make_smem_ptr(storage.x), LayoutX{})));
    Tensor w =
        slice.make_fragment_B(slice.partition_B(make_tensor(make_smem_ptr(storage.w), LayoutW{})));
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
        multiply_steps(mma, x_high, w_high, step, high);
        warpgroup_commit_batch();
        mma.accumulate_ = low_scale;
        multiply_steps(mma, x_high, w_low, step, low);
        multiply_steps(mma, x_low, w_high, step, low);
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
    meanwhile();
    warpgroup_wait<0>();
    warpgroup_fence_operand(low);
    if (tiles > 0) {
      pipeline.consumer_release(done);
      add(sum, low);
    }
  }

 private:
  template <class X, class W>
  CUTLASS_OPS_DEVICE static void multiply_steps(TiledMma& mma, X const& x, W const& w, int begin,
                                                Accumulators& accumulators) {
    CUTLASS_OPS_UNROLL
    for (int step = begin; step < begin + kSteps; ++step) {
      cute::gemm(mma, x(cute::_, cute::_, step), w(cute::_, cute::_, step), accumulators);
      mma.accumulate_ = cute::GMMA::ScaleOut::One;
    }
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
