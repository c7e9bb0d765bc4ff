// Instantiates the launchers of one description for every adapter, and registers them under a name.
#pragma once

#include "cutlass_ops/ceil_div.h"
#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/chain.h"
#include "cutlass_ops/gemm/fp16x3_mainloop.h"
#include "cutlass_ops/gemm/fp16x3_narrow_mainloop.h"
#include "cutlass_ops/gemm/fp16x3_runner.h"
#include "cutlass_ops/gemm/portable_mainloop.h"
#include "cutlass_ops/gemm/runner.h"
#include "cutlass_ops/gemm/sliced_gemm.h"
#include "cutlass_ops/gemm/stream_runner.h"
#include "cutlass_ops/gemm/transposing_mainloop.h"
#include "cutlass_ops/gemm/transposing_tile.h"
#include "cutlass_ops/kernel/combine_rows.h"
#include "cutlass_ops/kernel/matrix_epilogue.h"
#include "cutlass_ops/kernel/refine_nonfinite.h"
#include "cutlass_ops/kernel/repair_rows.h"
#include "kernel_table.h"
#include "matrix_slots.h"
#include "registry.h"
#include "repairs.h"
#include "stream_memory.h"

namespace cutlass_ops {

/// A tile must be what the plan knows of it: slots, workspace and grids are sized by the table.
template <int kKernel, class Tile>
constexpr void check_table() {
  constexpr KernelInfo kInfo = kKernels[kKernel];
  static_assert(kInfo.tile_m == Tile::kM && kInfo.tile_n == Tile::kN && kInfo.tile_k == Tile::kK,
                "kKernels has another tile");
  static_assert(kInfo.warps * 32 == Tile::kThreads, "kKernels has other warps");
  static_assert(kInfo.ctas_per_sm == Tile::kCtasPerSm, "kKernels has other CTAs");
}

template <int kKernel, class Gemm, class Chain, class Sink>
Status run_simt_gemm(gemm::Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                     cudaStream_t stream) {
  check_table<kKernel, typename Gemm::Cta>();
  return gemm::SimtRunner<Gemm>::run(problem, chain, sink, splits, stream);
}

template <int kKernel, class Tile, class Chain, class Sink>
Status run_portable(gemm::Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                    cudaStream_t stream) {
  using Gemm = gemm::SimtGemm<gemm::PortableMainloop<Tile>, Tile, Chain, Sink>;
  return run_simt_gemm<kKernel, Gemm>(problem, chain, sink, splits, stream);
}

/// Our own mainloop with the loads that the operands allow, two CTAs on an SM.
template <class Chain, class Sink>
Status run_transposing(gemm::Problem const& problem, Chain const& chain, Sink const& sink,
                       int splits, cudaStream_t stream) {
  using Tile = gemm::TransposingTile;
  using Vectors = gemm::SimtGemm<gemm::TransposingMainloop<Tile, true>, Tile, Chain, Sink>;
  using Scalars = gemm::SimtGemm<gemm::TransposingMainloop<Tile, false>, Tile, Chain, Sink>;
  return problem.vectors_of_k()
             ? run_simt_gemm<kTransposing128x128, Vectors>(problem, chain, sink, splits, stream)
             : run_simt_gemm<kTransposing128x128, Scalars>(problem, chain, sink, splits, stream);
}

/// The threads of our own mainloop where two groups of them share a CTA.
using SliceThreads = gemm::GroupThreads<gemm::TransposingTile::kThreads>;

/// Without aligned vectors of k the same splits run as two CTAs on an SM: rare, and not worth as
/// many kernels again.
template <class Chain, class Sink>
Status run_sliced(gemm::Problem const& problem, Chain const& chain, Sink const& sink, int splits,
                  cudaStream_t stream) {
  using Tile = gemm::TransposingTile;
  using Vectors =
      gemm::SlicedGemm<gemm::TransposingMainloop<Tile, true, SliceThreads>, Tile, Chain, Sink>;
  return problem.vectors_of_k()
             ? run_simt_gemm<kSliced128x128, Vectors>(problem, chain, sink, splits, stream)
             : run_transposing(problem, chain, sink, splits, stream);
}

/// Memory for the pieces of tiles lies behind the slots of the reduction, from the next 16 bytes
/// on.
template <class Chain, class Sink>
Status run_stream(LinearCall const& call, Chain const& chain, Sink const& sink, int slots) {
  using Tile = gemm::TransposingTile;
  using Vectors =
      gemm::StreamGemm<gemm::TransposingMainloop<Tile, true, SliceThreads>, Tile, Chain, Sink>;
  using Scalars =
      gemm::StreamGemm<gemm::TransposingMainloop<Tile, false, SliceThreads>, Tile, Chain, Sink>;
  check_table<kStreamK128x128, typename Vectors::Cta>();
  gemm::Problem const& problem = call.problem;
  float* const exchange = call.workspace + stream_exchange_offset(Sink::kReduces, problem.m, slots);
  auto* const run = problem.vectors_of_k() ? gemm::StreamRunner<Vectors>::template run<Chain, Sink>
                                           : gemm::StreamRunner<Scalars>::template run<Chain, Sink>;
  return run(problem, chain, sink, call.plan.ctas, exchange, call.stream);
}

/// The tensor cores, on halves that are there (make_pairs).
template <class Chain, class Sink>
Status run_fp16x3(LinearCall const& call, Chain const& chain, Sink const& sink) {
  using Tile = gemm::Fp16x3Tile<128, 128, 64, 3, 64>;
  using Gemm = gemm::Fp16x3Gemm<gemm::Fp16x3Mainloop<Tile>, Chain, Sink>;
  check_table<kFp16x3, Tile>();
  return gemm::Fp16x3Runner<Gemm>::run(call.x_pairs, call.weight_pairs, chain, sink,
                                       call.plan.splits, call.plan.ctas, call.column_flags,
                                       call.stream);
}

/// The same for few columns: x as it was given.
template <class Chain, class Sink>
Status run_fp16x3_narrow(LinearCall const& call, Chain const& chain, Sink const& sink) {
  using Tile = gemm::Fp16x3NarrowTile<64, 64, 64, 3, 2>;
  using Gemm = gemm::Fp16x3Gemm<gemm::Fp16x3NarrowMainloop<Tile>, Chain, Sink>;
  check_table<kFp16x3Narrow, Tile>();
  gemm::Problem const& problem = call.problem;
  // Of one row it is not looked at, but TMA wants it in fours.
  std::int64_t const stride = problem.m > 1 ? problem.x_stride : ceil_div(problem.k, 4) * 4;
  gemm::FloatRows const x{problem.x, stride, problem.m, problem.k, call.x_scales};
  return gemm::Fp16x3Runner<Gemm>::run(x, call.weight_pairs, chain, sink, call.plan.splits,
                                       call.plan.ctas, call.column_flags, call.stream);
}

/// Runs one kernel of the SIMT families.
template <class Chain, class Sink>
Status run_simt(int kernel, gemm::Problem const& problem, Chain const& chain, Sink const& sink,
                int splits, cudaStream_t stream) {
  switch (kernel) {
    case kSimt64x64:
      return run_portable<kSimt64x64, gemm::Simt64x64>(problem, chain, sink, splits, stream);
    case kSimt128x64:
      return run_portable<kSimt128x64, gemm::Simt128x64>(problem, chain, sink, splits, stream);
    case kSimt128x128:
      return run_portable<kSimt128x128, gemm::Simt128x128>(problem, chain, sink, splits, stream);
    case kSimt128x256:
      return run_portable<kSimt128x256, gemm::Simt128x256>(problem, chain, sink, splits, stream);
    case kTransposing128x128:
      return run_transposing(problem, chain, sink, splits, stream);
    case kSliced128x128:
      return run_sliced(problem, chain, sink, splits, stream);
    default:
      return {cudaErrorInvalidValue, "run_simt: no such kernel"};
  }
}

/// Runs the kernel of a plan, any but the skinny one; a reduction has so many slots to a row.
template <class Chain, class Sink>
Status run_kernel(LinearCall const& call, Chain const& chain, Sink const& sink, int slots) {
  switch (call.plan.kernel) {
    case kStreamK128x128:
      return run_stream(call, chain, sink, slots);
    case kFp16x3:
      return run_fp16x3(call, chain, sink);
    case kFp16x3Narrow:
      return run_fp16x3_narrow(call, chain, sink);
    default:
      return run_simt(call.plan.kernel, call.problem, chain, sink, call.plan.splits, call.stream);
  }
}

template <class Description>
struct Launchers {
  using Chain = typename Description::Chain;
  using Sink = typename Description::Sink;
  static constexpr int kWidth = epilogue::fragment_width<Chain>();
  static constexpr int kVectorWidth = 4;

  static Chain chain(epilogue::Arguments const& arguments, int columns) {
    epilogue::Reader reader(arguments);
    return Chain::make(reader, columns);
  }

  static EpilogueShape shape(epilogue::Arguments const& arguments, int columns) {
    epilogue::Reader reader(arguments);
    Chain const chain = Chain::make(reader, columns);
    return {chain.window(), Sink::kReduces, matrix_width(chain), reader.consumed()};
  }

  static Status run_gemm(LinearCall const& call) {
    int const columns = call.problem.n;
    Chain const steps = chain(call.arguments, columns);
    int const slots = int(ceil_div(columns, kKernels[call.plan.kernel].tile_n));
    float* const target = sink_target(call.workspace, call.out, slots);
    Sink const sink = Sink::make(target, columns / steps.window(), slots);
    Status const status = run_kernel(call, steps, sink, slots);
    return status.ok() ? combine(target, slots, call.out, call.problem.m, call.stream) : status;
  }

  static Status run_matrix(MatrixCall const& call) {
    Chain const steps = chain(call.arguments, call.source.columns);
    int const output_columns = call.source.columns / steps.window();
    MatrixSlots const cut = matrix_slots(call.rows, output_columns, matrix_width(steps));
    float* const target = sink_target(call.workspace, call.out, cut.slots);
    bool const combines = Sink::kReduces && cut.slots > 1 && cut.together();
    kernel::MatrixEpilogueParams<Chain, Sink> const params{
        call.source,
        steps,
        Sink::make(target, output_columns, cut.slots),
        call.rows,
        output_columns,
        cut.slots,
        cut.slot_columns,
        combines ? call.out : nullptr};
    Status const status = matrix_width(steps) == kWidth
                              ? launch_matrix<kWidth>(params, call.stream)
                              : launch_matrix<kVectorWidth>(params, call.stream);
    return status.ok() && !combines ? combine(target, cut.slots, call.out, call.rows, call.stream)
                                    : status;
  }

  static Status refine(LinearCall const& call) {
    using Config = kernel::RefineNonfiniteConfig;
    constexpr int kThreads = Config::kThreads;
    int const rows_per_cta = Config::rows_per_cta(call.problem.m);
    std::int64_t const ctas = grid_stride_ctas(call.problem.m, rows_per_cta);
    if constexpr (Sink::kReduces) {
      return launch_dependent<kernel::refine_nonfinite<Chain, typename Sink::Monoid>>(
          "refine_nonfinite", ctas, kThreads, 0, call.stream, refine_params<Chain>(call),
          rows_per_cta);
    } else if (call.weight_pairs.halves != nullptr) {
      Chain const steps = chain(call.arguments, call.problem.n);
      int const output_columns = call.problem.n / steps.window();
      kernel::RepairRowsParams<Chain, Sink> const params{
          call.problem,   steps,          Sink::make(call.out, output_columns, 1),
          steps.window(), output_columns, missing_halves(call),
          rows_per_cta};
      return launch_dependent<kernel::repair_rows<Chain, Sink>>("repair_rows", ctas, kThreads, 0,
                                                                call.stream, params);
    } else {
      return {cudaErrorInvalidValue, "refine_nonfinite: the description reduces nothing"};
    }
  }

 private:
  /// Output columns of a matrix that a thread evaluates at a time. Windows of one column, over a
  /// folded operand, need not go one by one.
  static int matrix_width(Chain const& chain) {
    return chain.window() == 1 ? kVectorWidth : kWidth;
  }

  template <int kColumns>
  static Status launch_matrix(kernel::MatrixEpilogueParams<Chain, Sink> const& params,
                              cudaStream_t stream) {
    using Config = kernel::MatrixEpilogueConfig;
    static_assert(MatrixSlots::kOfACta == Config::kThreads / 32, "the warps of a CTA");
    return launch_dependent<kernel::matrix_epilogue<kColumns, Chain, Sink>>(
        "matrix_epilogue",
        grid_stride_ctas(std::int64_t{params.rows} * params.slots, Config::kThreads / 32),
        Config::kThreads, 0, stream, params);
  }

  /// A reduction over a single slot writes its result at once.
  static float* sink_target(float* workspace, float* out, int slots) {
    return Sink::kReduces && slots > 1 ? workspace : out;
  }

  /// So many threads to a row.
  template <int kLanes>
  static Status launch_combine(float const* partials, int slots, float* out, int rows,
                               cudaStream_t stream) {
    using Config = kernel::CombineRowsConfig;
    return launch_dependent<kernel::combine_rows<typename Sink::Monoid, kLanes>>(
        "combine_rows", grid_stride_ctas(rows, Config::kThreads / kLanes), Config::kThreads, 0,
        stream, partials, slots, out, rows);
  }

  static Status combine(float const* partials, int slots, float* out, int rows,
                        cudaStream_t stream) {
    if constexpr (Sink::kReduces) {
      using Config = kernel::CombineRowsConfig;
      if (slots == 1) {
        return {};
      }
      return slots <= Config::kSlotsPerThread
                 ? launch_combine<1>(partials, slots, out, rows, stream)
                 : launch_combine<32>(partials, slots, out, rows, stream);
    } else {
      return {};
    }
  }
};

}  // namespace cutlass_ops

/// One line per registered description, in a file of its own under instantiations/ so that they
/// compile in parallel.
#define CUTLASS_OPS_REGISTER_EPILOGUE(name, ...)                                                  \
  namespace {                                                                                     \
  using Launchers_ = ::cutlass_ops::Launchers<__VA_ARGS__>;                                       \
  ::cutlass_ops::Registration const registration_{{name, Launchers_::shape, Launchers_::run_gemm, \
                                                   Launchers_::run_matrix, Launchers_::refine}};  \
  }
