// Kernels of "fp16x3": warp-specialised, persistent. One warp feeds the shared memory, warpgroups
// of 64 rows multiply and run the epilogue.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "cutlass/arch/reg_reconfig.h"

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/gemm/fp16x3_epilogue.h"
#include "cutlass_ops/gemm/problem.h"

namespace cutlass_ops {
namespace gemm {

/// Mainloop: Fp16x3Mainloop or Fp16x3NarrowMainloop.
template <class Mainloop_, class Chain, class Sink>
struct Fp16x3Gemm {
  using Mainloop = Mainloop_;
  using Tile = typename Mainloop::Tile;
  using Epilogue = Fp16x3Epilogue<Tile, Chain, Sink>;
  using Pipeline = typename Mainloop::Pipeline;
  using PipelineState = typename Mainloop::PipelineState;

  struct Params {
    typename Mainloop::Params mainloop;
    typename Epilogue::Params epilogue;
    Raster raster;
    int tiles_of_k;
    int tiles_per_split;
    int* column_flags;
  };

  struct SharedStorage {
    typename Mainloop::SharedStorage mainloop;
    typename Epilogue::SharedStorage epilogue;
    typename Pipeline::SharedStorage pipeline;
  };

  CUTLASS_OPS_DEVICE static void run(Params const& params, SharedStorage& storage) {
    int const group = __shfl_sync(0xffffffffu, threadIdx.x / Tile::kGroupThreads, 0);
    typename Pipeline::Params pipeline_params;
    pipeline_params.transaction_bytes = Mainloop::kStageBytes;
    pipeline_params.role =
        group == 0 ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    pipeline_params.is_leader = threadIdx.x == 0;
    pipeline_params.num_consumers = Tile::kConsumers;
    Pipeline pipeline(storage.pipeline, pipeline_params,
                      cute::Shape<cute::_1, cute::_1, cute::_1>{});
    __syncthreads();
    if (group == 0) {
      cutlass::arch::warpgroup_reg_dealloc<Tile::kProducerRegisters>();
      if (threadIdx.x == 0) {
        produce(params, storage, pipeline);
      } else if (threadIdx.x / 32 == 1) {
        flag_columns(params);
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<Tile::kConsumerRegisters>();
      consume(params, storage, pipeline);
    }
  }

 private:
  /// `visit(tile, begin, end)` for each item of this CTA: its tile, and tiles of k.
  template <class Visit>
  CUTLASS_OPS_DEVICE static void visit_items(Params const& params, Visit visit) {
    unsigned const items = unsigned(params.raster.ctas());
    CUTLASS_OPS_UNROLL_BY(1)
    for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
      TileCoordinate const tile = params.raster.locate(item);
      int const begin = min(params.tiles_of_k, tile.split * params.tiles_per_split);
      visit(tile, begin, min(params.tiles_of_k, begin + params.tiles_per_split));
    }
  }

  CUTLASS_OPS_DEVICE static void produce(Params const& params, SharedStorage& storage,
                                         Pipeline& pipeline) {
    cute::prefetch_tma_descriptor(params.mainloop.x.copy.get_tma_descriptor());
    cute::prefetch_tma_descriptor(params.mainloop.w.copy.get_tma_descriptor());
    wait_for_predecessor();
    PipelineState state = cutlass::make_producer_start_state<Pipeline>();
    visit_items(params, [&](TileCoordinate const& tile, int begin, int end) {
      auto const fill =
          Mainloop::source(params.mainloop, tile.tile_m, tile.tile_n, storage.mainloop);
      CUTLASS_OPS_UNROLL_BY(1)
      for (int k = begin; k < end; ++k) {
        pipeline.producer_acquire(state);
        fill(*pipeline.producer_get_barrier(state), k, state.index());
        ++state;
      }
    });
    pipeline.producer_tail(state);
  }

  /// Of each column tile, by one warp of one CTA.
  CUTLASS_OPS_DEVICE static void flag_columns(Params const& params) {
    wait_for_predecessor();
    auto const& epilogue = params.epilogue;
    visit_items(params, [&](TileCoordinate const& tile, int, int) {
      if (tile.tile_m == 0 && tile.split == 0) {
        bool flag = false;
        for (int i = int(threadIdx.x % 32); i < Tile::kN; i += 32) {
          int const column = tile.tile_n * Tile::kN + i;
          flag |= column < epilogue.columns && epilogue.w_scales[column].needs_repair();
        }
        flag = __any_sync(0xffffffffu, flag);
        if (threadIdx.x % 32 == 0) {
          params.column_flags[tile.tile_n] = flag;
        }
      }
    });
  }

  CUTLASS_OPS_DEVICE static void consume(Params const& params, SharedStorage& storage,
                                         Pipeline& pipeline) {
    int const thread = int(threadIdx.x) - Tile::kGroupThreads;
    wait_for_predecessor();
    PipelineState state;
    visit_items(params, [&](TileCoordinate const& tile, int begin, int end) {
      typename Mainloop::Accumulators accumulators;
      typename Epilogue::ColumnScales columns;
      RowScales const rows = Mainloop::multiply(
          params.mainloop, pipeline, state, tile, begin, end, thread, storage.mainloop,
          accumulators, [&] { columns.load(params.epilogue, thread, tile); });
      Epilogue::run(params.epilogue, storage.epilogue, accumulators, rows, columns, thread, tile);
    });
    Epilogue::finish();
  }
};

/// Built without 90a it is empty, and must not be launched (has_hopper_code).
template <class Gemm>
__global__ void __launch_bounds__(Gemm::Tile::kThreads, Gemm::Tile::kCtasPerSm) fp16x3_gemm(
    __grid_constant__ typename Gemm::Params const params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char fp16x3_shared[];
  Gemm::run(params, *reinterpret_cast<typename Gemm::SharedStorage*>(fp16x3_shared));
#endif
}

}  // namespace gemm
}  // namespace cutlass_ops
