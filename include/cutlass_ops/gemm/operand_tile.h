// Tiles of an operand in shared memory, brought by TMA: of its two fp16 halves, or of floats.
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

/// kRows rows by kK columns of each of kParts matrices in each of kStages stages, swizzled as the
/// tensor cores read them, in boxes of 128 bytes by kRows rows.
template <class Element_, int kParts, int kRows, int kK, int kStages>
struct OperandTile {
  using Element = Element_;
  using Atom = decltype(cutlass::gemm::collective::detail::ss_smem_selector<
                        cute::GMMA::Major::K, Element, cute::Int<kRows>, cute::Int<kK>>());
  /// Row, k, part, stage.
  using Layout = decltype(cute::tile_to_shape(
      Atom{}, cute::make_shape(cute::Int<kRows>{}, cute::Int<kK>{}, cute::Int<kParts>{},
                               cute::Int<kStages>{})));
  using Box = cute::Shape<cute::Int<kRows>, cute::_1, cute::Int<kK>>;
  using Stride = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
  static constexpr int kStageElements = kParts * kRows * kK;
  static constexpr int kStageBytes = kStageElements * int(sizeof(Element));

  static auto copy_of(Element const* elements, int rows, int columns, std::int64_t row_stride,
                      std::int64_t part_stride) {
    auto const matrix = cute::make_tensor(cute::make_gmem_ptr(elements),
                                          cute::make_layout(cute::make_shape(rows, columns, kParts),
                                                            Stride{row_stride, {}, part_stride}));
    return cute::make_tma_copy_A_sm90(cute::SM90_TMA_LOAD{}, matrix,
                                      Layout{}(cute::_, cute::_, 0, 0), Box{},
                                      cute::Shape<cute::_1, cute::_1, cute::_1>{});
  }

  struct Params {
    decltype(copy_of(nullptr, 0, 0, 0, 0)) copy;
    int rows, columns;

    static Params make(Element const* elements, int rows, int columns, std::int64_t row_stride,
                       std::int64_t part_stride) {
      return {copy_of(elements, rows, columns, row_stride, part_stride), rows, columns};
    }

    static Params make(Fp16Pairs const& pairs) {
      return make(reinterpret_cast<Element const*>(pairs.halves), pairs.rows, pairs.columns,
                  pairs.pitch, std::int64_t{pairs.rows} * pairs.pitch);
    }
  };

  struct SharedStorage {
    alignas(1024) Element elements[cute::cosize_v<Layout>];
  };

  CUTLASS_OPS_DEVICE static auto tensor(SharedStorage& storage) {
    return cute::make_tensor(cute::make_smem_ptr(storage.elements), Layout{});
  }

  /// What brings, called by one thread with (barrier, tile of k, part, stage), a part of the tile.
  CUTLASS_OPS_DEVICE static auto source(Params const& params, int tile, SharedStorage& storage) {
    using namespace cute;
    Tensor all = params.copy.get_tma_tensor(make_shape(params.rows, params.columns, kParts));
    Tensor tiles = local_tile(all, Box{}, make_coord(_, _, _), Step<_1, X, _1>{});
    auto slice = params.copy.get_slice(0);
    Tensor from = slice.partition_S(tiles(_, _, tile, _, _));  // copy, m, k, tile, part
    Tensor to = slice.partition_D(tensor(storage));            // copy, m, k, part, stage
    return [&params, from, to](auto& barrier, int k, int part, int stage) {
      copy(params.copy.with(barrier), from(_, _, _, k, part), to(_, _, _, part, stage));
    };
  }
};

/// Of an operand that was split before.
template <int kRows, int kK, int kStages>
using Fp16HalvesTile = OperandTile<cutlass::half_t, 2, kRows, kK, kStages>;

}  // namespace gemm
}  // namespace cutlass_ops
