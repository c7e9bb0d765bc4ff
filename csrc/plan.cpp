#include "plan.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cost_model.h"
#include "cutlass_ops/ceil_div.h"
#include "kernel_table.h"
#include "matrix_slots.h"
#include "pair_memory.h"
#include "stream_memory.h"

namespace cutlass_ops {
namespace {

constexpr int kMostSplits = 32;

// What a faster plan may take in memory, in floats. Up to 32 MiB it is not asked; beyond, it must
// gain more than the model can be trusted for, and take no more than 64 MiB or the [m, n] matrix of
// the unfolded layer, which PyTorch writes at least once.
constexpr std::int64_t kSmallWorkspace = std::int64_t{1} << 23;
constexpr std::int64_t kLargeWorkspace = std::int64_t{1} << 24;
constexpr double kLeastGain = 0.03;

// Halves take as many bytes as what they are of, and the bounds above leave them out. Beyond 4 GiB
// of them x and W are multiplied as they are.
constexpr std::int64_t kMostHalves = std::int64_t{1} << 30;

// Sums of so many products and fewer are float32's: up to a dozen, its roundings are less than what
// the products of halves are off by (docs/accuracy.md). A promise that costs nothing: the cost
// model takes halves from 18 products on.
constexpr int kShortSum = 16;

bool own_mainloop(KernelInfo const& kernel) {
  return kernel.family == KernelFamily::kTransposing || kernel.family == KernelFamily::kStreamK;
}

/// Splits of k without which a SIMT kernel on a folded weight is less accurate than the layer that
/// it stands for.
///
/// The mean of f dot products averages their rounding errors down to 1 / sqrt(f) of one chain's; a
/// folded weight has one chain alone. The error of a chain of k additions of like signs, the worst
/// case, is about 0.25 sqrt(k) roundings of 2^-24 (22.8 at k = 8192); s splits divide it by s.
/// Wanted is the bound of the tests with a tenth to spare: twice the error of the unfolded layer,
/// measured as 0.77 of the chain's over sqrt(f), plus 4 roundings.
int splits_for_accuracy(PlanRequest const& request, double additions) {
  if (request.folded == 1) {
    return 1;
  }
  double const layer = 0.25 * std::sqrt(double(request.k));
  double const bound = 0.9 * (1.5 * layer / std::sqrt(double(request.folded)) + 4.0);
  return std::max(1, int(std::ceil(0.25 * std::sqrt(additions) / bound)));
}

/// Splits of k that a kernel must have. The skinny one adds up 32 chains as it is, and stream-K
/// cuts k in its own way. The kernels that take halves add in fp32 once for a tile of k.
int least_splits(KernelInfo const& kernel, PlanRequest const& request) {
  if (kernel.family == KernelFamily::kSkinny || kernel.family == KernelFamily::kStreamK) {
    return 1;
  }
  double const k = request.k;
  return splits_for_accuracy(request, takes_halves(kernel) ? k / kernel.tile_k : k);
}

/// Whether stream-K makes the chains of additions short enough: fewer tiles than CTAs are cut into
/// as many pieces as there are CTAs for one.
bool accurate(KernelInfo const& kernel, PlanRequest const& request) {
  if (kernel.family != KernelFamily::kStreamK) {
    return true;
  }
  return std::max<std::int64_t>(1, resident_ctas(kernel, request) / tiles_of(kernel, request)) >=
         splits_for_accuracy(request, request.k);
}

/// The transposing mainloop moves tiles that reach over an edge back inside; there is no tensor map
/// of a matrix without elements.
bool takes(KernelInfo const& kernel, PlanRequest const& request) {
  if (kernel.family == KernelFamily::kFp16x3Narrow && !request.x_aligned) {
    return false;
  }
  if (takes_halves(kernel)) {
    // A tensor map has strides of less than 2^40 bytes.
    constexpr std::int64_t kMostElements = (std::int64_t{1} << 39) - 1;
    std::int64_t const rows = std::max(request.m, request.n);
    return request.m > 0 && request.n > 0 && request.k > 0 &&
           request.k <= INT32_MAX - gemm::Fp16Pairs::kLine &&
           rows * gemm::Fp16Pairs::pitch_of(request.k) <= kMostElements;
  }
  return !own_mainloop(kernel) ||
         (request.m >= kernel.tile_m && request.n >= kernel.tile_n && request.k >= kernel.tile_k);
}

}  // namespace

// The transposing mainloop was made for Hopper's 228 KB of shared memory, which Blackwell's data
// centre GPUs have too; it was measured on an H200 alone.
// Warpgroup products are of compute capability 9.0 alone.
bool runs_on(int kernel, Gpu gpu) {
  if (takes_halves(kernel)) {
    return gpu.capability == 90;
  }
  return !own_mainloop(kKernels[kernel]) || (gpu.capability >= 90 && gpu.capability < 110);
}

std::optional<Plan> make_plan(PlanRequest const& request, int kernel, int splits) {
  KernelInfo const& info = kKernels[kernel];
  bool const simt = info.family != KernelFamily::kSkinny;
  std::int64_t const output_columns = request.n / request.window;
  std::int64_t const tiles_n = ceil_div(request.n, info.tile_n);
  // Fewer than 2^62 tiles before they are split; both factors are below 2^31.
  std::int64_t const tiles = ceil_div(request.m, info.tile_m) * tiles_n;
  if (!takes(info, request) || splits < 1 || splits > std::max(1, request.k) ||
      tiles > INT32_MAX / splits) {
    return std::nullopt;
  }
  Plan plan;
  plan.kernel = kernel;
  plan.splits = splits;
  bool const stream = info.family == KernelFamily::kStreamK;
  plan.direct = simt && splits == 1 && info.tile_n % request.window == 0;
  if (stream && !plan.direct) {
    return std::nullopt;
  }
  if (plan.direct) {
    plan.workspace = request.reduces && tiles_n > 1 ? request.m * tiles_n : 0;
    if (stream) {
      plan.ctas = request.gpu.sm_count * info.ctas_per_sm;
      plan.workspace = stream_exchange_offset(request.reduces, request.m, tiles_n) +
                       stream_exchange_elements(info, plan.ctas);
    }
  } else {
    plan.workspace =
        std::int64_t{splits} * request.m * request.n +
        matrix_workspace(request.m, int(output_columns), request.fragment_width, request.reduces);
  }
  if (takes_halves(info)) {
    plan.ctas = request.gpu.sm_count * info.ctas_per_sm;
    plan.pairs_elements = column_flag_words(request.n, info.tile_n) +
                          x_elements(kernel, splits, request.m, request.k) +
                          (request.packed ? 0 : PairMemory(request.n, request.k).elements);
    plan.workspace = whole_lines(plan.workspace) + plan.pairs_elements;
  }
  plan.nanoseconds = std::int64_t(estimate_ns(info, request, plan));
  return plan;
}

std::optional<Plan> choose_plan(PlanRequest const& request) {
  std::int64_t const unfolded =
      std::int64_t{request.m} *
      std::min<std::int64_t>(INT32_MAX, std::int64_t{request.n} * request.folded);
  std::int64_t const most_workspace = std::max(kLargeWorkspace, unfolded);
  std::optional<Plan> best;
  for (int kernel = 0; kernel < kKernelCount; ++kernel) {
    KernelInfo const& info = kKernels[kernel];
    if (!runs_on(kernel, request.gpu) || !takes(info, request) || !accurate(info, request) ||
        (takes_halves(info) && (!request.fp16x3 || request.k <= kShortSum))) {
      continue;
    }
    int const least = least_splits(info, request);
    for (int splits = least; splits <= std::max(kMostSplits, least); ++splits) {
      // A share of k shorter than 64 is all prologue.
      if (splits > least && request.k / splits < 64) {
        break;
      }
      std::optional<Plan> const plan = make_plan(request, kernel, splits);
      if (plan && plan->pairs_elements > kMostHalves) {
        break;
      }
      if (!plan ||
          (best && splits > least && plan->workspace - plan->pairs_elements > most_workspace)) {
        continue;
      }
      bool const dearer = best && plan->workspace > std::max(kSmallWorkspace, best->workspace);
      double const wanted = dearer ? 1.0 - kLeastGain : 1.0;
      if (!best || double(plan->nanoseconds) < wanted * double(best->nanoseconds)) {
        best = plan;
      }
    }
  }
  return best;
}

bool choose_folding(int m, int n, int k, int kernel_size, Gpu gpu, bool fp16x3, bool x_aligned) {
  if (kernel_size == 1) {
    return false;
  }
  int const windows = n / kernel_size;
  std::optional<Plan> const pooled =
      choose_plan({m, n, k, kernel_size, true, 1, gpu, 1, fp16x3, false, x_aligned});
  std::optional<Plan> const folded =
      choose_plan({m, windows, k, 1, true, 1, gpu, kernel_size, fp16x3, false, x_aligned});
  if (!pooled || !folded) {
    return !pooled;
  }
  double const fold_ns = estimate_fold_ns(n, windows, k, gpu, takes_halves(folded->kernel));
  return double(folded->nanoseconds) + fold_ns < double(pooled->nanoseconds);
}

std::string describe(Plan const& plan) {
  KernelInfo const& info = kKernels[plan.kernel];
  std::ostringstream text;
  text << info.name << ", tile " << info.tile_m << "x" << info.tile_n << ", ";
  if (info.family == KernelFamily::kStreamK) {
    text << "tiles shared out along k";
  } else {
    text << plan.splits << (plan.splits == 1 ? " split of k" : " splits of k");
  }
  text << ", epilogue " << (plan.direct ? "in the GEMM" : "after the partial sums")
       << ", workspace " << 4 * plan.workspace << " bytes";
  return text.str();
}

}  // namespace cutlass_ops
