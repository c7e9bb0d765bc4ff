// Tiles of an operand's two fp16 halves in shared memory, brought by TMA.
#pragma once

#include "cute/tensor.hpp"

#include "cute/arch/cluster_sm90.hpp"
#include "cute/atom/copy_traits_sm90_tma.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/gemm/collective/builders/sm90_common.inl"
#include "cutlass/numeric_types.h"

#include "cutlass_ops/epilogue/fragment.h"
#include "cutlass_ops/gemm/fp16_pairs.h"

namespace cutlass_ops {
namespace gemm {

/// kRows rows by kK columns in each of kStages stages, laid out as the tensor cores read them.
template <int kRows, int kK, int kStages>
struct Fp16HalvesTile {
  using Element = cutlass::half_t;
  using Atom = decltype(cutlass::gemm::collective::detail::ss_smem_selector<
                        cute::GMMA::Major::K, Element, cute::Int<kRows>, cute::Int<kK>>());
  /// Row, k, half, stage.
  using Layout =
      decltype(cute::tile_to_shape(Atom{}, cute::make_shape(cute::Int<kRows>{}, cute::Int<kK>{},
                                                            cute::_2{}, cute::Int<kStages>{})));
  using Box = cute::Shape<cute::Int<kRows>, cute::_1, cute::Int<kK>>;
  using Stride = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
  static constexpr int kStageBytes = 2 * kRows * kK * int(sizeof(Element));

  static auto copy_of(Fp16Pairs const& pairs) {
    auto const matrix = cute::make_tensor(
        cute::make_gmem_ptr(reinterpret_cast<Element const*>(pairs.halves)),
        cute::make_layout(cute::make_shape(pairs.rows, pairs.columns, 2),
                          Stride{pairs.pitch, {}, std::int64_t{pairs.rows} * pairs.pitch}));
    return cute::make_tma_copy_A_sm90(cute::SM90_TMA_LOAD{}, matrix,
                                      Layout{}(cute::_, cute::_, 0, 0), Box{},
                                      cute::Shape<cute::_1, cute::_1, cute::_1>{});
  }

  struct Params {
    decltype(copy_of(Fp16Pairs{})) copy;
    int rows, columns;

    static Params make(Fp16Pairs const& pairs) {
      return {copy_of(pairs), pairs.rows, pairs.columns};
    }
  };

  struct SharedStorage {
    alignas(1024) Element elements[cute::cosize_v<Layout>];
  };

  CUTLASS_OPS_DEVICE static auto tensor(SharedStorage& storage) {
    return cute::make_tensor(cute::make_smem_ptr(storage.elements), Layout{});
  }

  /// What brings, called by one thread with (barrier, tile of k, half, stage), a half of the tile.
  CUTLASS_OPS_DEVICE static auto source(Params const& params, int tile, SharedStorage& storage) {
    using namespace cute;
    Tensor all = params.copy.get_tma_tensor(make_shape(params.rows, params.columns, 2));
    Tensor tiles = local_tile(all, Box{}, make_coord(_, _, _), Step<_1, X, _1>{});
    auto slice = params.copy.get_slice(0);
    Tensor from = slice.partition_S(tiles(_, _, tile, _, _));  // copy, m, k, tile, half
    Tensor to = slice.partition_D(tensor(storage));            // copy, m, k, half, stage
    return [&params, from, to](auto& barrier, int k, int half, int stage) {
      copy(params.copy.with(barrier), from(_, _, _, k, half), to(_, _, _, half, stage));
    };
  }
};

}  // namespace gemm
}  // namespace cutlass_ops
