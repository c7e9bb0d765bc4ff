#include "plan.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cutlass_ops/ceil_div.h"
#include "kernel_table.h"
#include "matrix_slots.h"
#include "pair_memory.h"
#include "stream_memory.h"

namespace cutlass_ops {
namespace {

// Measured on an H200; on another GPU the ratios are what matters.
constexpr double kReferenceSms = 132.0;
// Streams of reads and writes, short of the copy bandwidth of 4268.
constexpr double kBytesPerNs = 3200.0;
constexpr double kReadBytesPerNs = 4100.0;  // the skinny kernel, one row
constexpr double kLaunchNs = 2000.0;        // a dependent launch
constexpr double kPartialWaveNs = 4000.0;   // of a wave that stores its accumulators as they are
constexpr double kCollectNs = 3000.0;       // a piece, by the CTA that completes its tile
constexpr double kFactorsNs = 5000.0;       // those of W's columns, before its halves
constexpr double kAloneNs = 640.0;    // a tile of k of fp16x3's narrow kernel, one CTA on an SM
constexpr double kStreamNs = 8000.0;  // flags cleared, pieces published and added up

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

/// Share of the FFMA rate that so many warps on an SM reach: 4 hide little latency, 12 all of it.
double warp_efficiency(double warps) { return std::min(1.0, 0.3 + 0.075 * warps); }

bool own_mainloop(KernelInfo const& kernel) {
  return kernel.family == KernelFamily::kTransposing || kernel.family == KernelFamily::kStreamK;
}

/// CTAs that run at the same time.
std::int64_t resident_ctas(KernelInfo const& kernel, PlanRequest const& request) {
  return std::int64_t{request.gpu.sm_count} * kernel.ctas_per_sm;
}

std::int64_t tiles_of(KernelInfo const& kernel, PlanRequest const& request) {
  return ceil_div(request.m, kernel.tile_m) * ceil_div(request.n, kernel.tile_n);
}

/// Time of the GEMM alone: whole waves at the full rate, then a wave that leaves part of each SM
/// idle.
double gemm_ns(KernelInfo const& kernel, PlanRequest const& request, Plan const& plan) {
  double const wave_ns = plan.direct ? kernel.wave_ns : std::min(kernel.wave_ns, kPartialWaveNs);
  double const flops_per_ns_per_sm = kernel.tflops * 1e3 / kReferenceSms;
  double const tile_flops = 2.0 * kernel.tile_m * kernel.tile_n;  // for each k
  std::int64_t const tiles = tiles_of(kernel, request);
  std::int64_t const places = resident_ctas(kernel, request);
  std::int64_t const ctas = tiles * plan.splits;
  double const cta_flops = tile_flops * double(ceil_div(request.k, plan.splits));
  double ns =
      double(ctas / places) * (kernel.ctas_per_sm * cta_flops / flops_per_ns_per_sm + wave_ns);
  if (std::int64_t const rest = ctas % places; rest > 0) {
    double const resident = double(ceil_div(rest, request.gpu.sm_count));
    double const efficiency = warp_efficiency(resident * kernel.warps) /
                              warp_efficiency(double(kernel.ctas_per_sm) * kernel.warps);
    ns += resident * cta_flops / (flops_per_ns_per_sm * efficiency) + wave_ns;
  }
  return ns;
}

/// Every SM has the same work; tiles in more than one share wait for those to be added up.
double stream_ns(KernelInfo const& kernel, PlanRequest const& request) {
  std::int64_t const ctas = resident_ctas(kernel, request);
  std::int64_t const tiles = tiles_of(kernel, request);
  double const tile_ns = 2.0 * kernel.tile_m * kernel.tile_n * request.k * ctas /
                         (kernel.tflops * 1e3 * request.gpu.sm_count / kReferenceSms);
  std::int64_t const shares = tiles % ctas > 0 ? ctas / (tiles % ctas) : 1;
  return tile_ns * double(tiles) / double(ctas) + double(ceil_div(tiles, ctas)) * kernel.wave_ns +
         kStreamNs + double(shares - 1) * kCollectNs;
}

/// Making the halves of W, with the factors of its columns, unless they are there, and those of x.
double halves_ns(PlanRequest const& request, bool of_x) {
  bool const of_weight = !request.packed;
  double const elements =
      double(request.k) * ((of_x ? request.m : 0.0) + (of_weight ? request.n : 0.0));
  return 8.0 * elements / kBytesPerNs * kReferenceSms / request.gpu.sm_count +
         (of_x || of_weight ? kLaunchNs : 0.0) + (of_weight ? kFactorsNs : 0.0);
}

/// CTAs take whole tiles, or splits of them, one after the other, or wait for the halves of W; the
/// operands are split into halves before.
double fp16x3_ns(KernelInfo const& kernel, PlanRequest const& request, int splits) {
  double const item_ns = 2.0 * kernel.tile_m * kernel.tile_n *
                         double(ceil_div(ceil_div(request.k, kernel.tile_k), splits)) *
                         kernel.tile_k / (kernel.tflops * 1e3 / kReferenceSms);
  std::int64_t const items = tiles_of(kernel, request) * splits;
  double const rounds = double(ceil_div(items, resident_ctas(kernel, request)));
  double const weight_ns = 4.0 * request.n * double(request.k) / kBytesPerNs;
  return std::max(rounds * item_ns, weight_ns) + rounds * kernel.wave_ns +
         halves_ns(request, true) + kLaunchNs;
}

/// Two CTAs on an SM wait for memory together, one waits for its own loads.
double fp16x3_narrow_ns(KernelInfo const& kernel, PlanRequest const& request, int splits) {
  double const tile_flops = 2.0 * kernel.tile_m * kernel.tile_n * kernel.tile_k;
  double const tile_ns = kernel.ctas_per_sm * tile_flops / (kernel.tflops * 1e3 / kReferenceSms);
  double const tiles_of_k = double(ceil_div(ceil_div(request.k, kernel.tile_k), splits));
  std::int64_t const items = tiles_of(kernel, request) * splits;
  std::int64_t const places = resident_ctas(kernel, request);
  double const full = tiles_of_k * tile_ns + kernel.wave_ns;
  double ns = double(items / places) * full;
  if (std::int64_t const rest = items % places; rest > 0) {
    ns += rest > request.gpu.sm_count ? full : tiles_of_k * kAloneNs + kernel.wave_ns;
  }
  return ns + halves_ns(request, false) + 1.5 * kLaunchNs;
}

/// The skinny kernel reads W once per row group, or is bound by its arithmetic.
double skinny_ns(PlanRequest const& request, int splits) {
  KernelInfo const& kernel = kKernels[kSkinny];
  double const groups = double(ceil_div(request.m, kernel.tile_m));
  double const rows = std::min(request.m, kernel.tile_m);
  double const tiles_n = double(ceil_div(request.n, kernel.tile_n));
  double const bytes = 4.0 * double(request.k) * (request.n * groups + request.m);
  double const flops = 2.0 * rows * groups * tiles_n * kernel.tile_n * double(request.k);
  double const ctas = groups * tiles_n * splits;
  double const fill = std::min(1.0, ctas / (double(request.gpu.sm_count) * kernel.ctas_per_sm));
  double const scale = kReferenceSms / request.gpu.sm_count;
  return std::max(bytes / kReadBytesPerNs, flops / (kernel.tflops * 1e3)) * scale / fill +
         kernel.wave_ns;
}

/// Partials are written by the GEMM, read and finished by a second kernel.
double partials_ns(PlanRequest const& request, int splits) {
  return 4.0 * request.m * double(request.n) * (2.0 * splits + 1.0) / kBytesPerNs + kLaunchNs;
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
  bool const narrow = info.family == KernelFamily::kFp16x3Narrow;
  bool const fp16x3 = takes_halves(kernel);
  plan.direct = simt && splits == 1 && info.tile_n % request.window == 0;
  if (stream && !plan.direct) {
    return std::nullopt;
  }
  double ns = stream   ? stream_ns(info, request)
              : narrow ? fp16x3_narrow_ns(info, request, splits)
              : fp16x3 ? fp16x3_ns(info, request, splits)
              : simt   ? gemm_ns(info, request, plan)
                       : skinny_ns(request, splits);
  if (plan.direct) {
    plan.workspace = request.reduces && tiles_n > 1 ? request.m * tiles_n : 0;
    ns += request.reduces && tiles_n > 1 ? kLaunchNs : 0.0;
    if (stream) {
      plan.ctas = request.gpu.sm_count * info.ctas_per_sm;
      plan.workspace = stream_exchange_offset(request.reduces, request.m, tiles_n) +
                       stream_exchange_elements(info, plan.ctas);
    }
  } else {
    plan.workspace =
        std::int64_t{splits} * request.m * request.n +
        matrix_workspace(request.m, int(output_columns), request.fragment_width, request.reduces);
    ns += partials_ns(request, splits);
  }
  if (fp16x3) {
    plan.ctas = request.gpu.sm_count * info.ctas_per_sm;
    plan.pairs_elements = column_flag_words(request.n, info.tile_n) +
                          x_elements(kernel, splits, request.m, request.k) +
                          (request.packed ? 0 : PairMemory(request.n, request.k).elements);
    plan.workspace = whole_lines(plan.workspace) + plan.pairs_elements;
  }
  plan.nanoseconds = std::int64_t(ns);
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
        (takes_halves(info) && !request.fp16x3)) {
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
  // Where halves are wanted, they are made of W itself and not of means that were written before.
  bool const at_once = takes_halves(folded->kernel);
  double const fold_bytes = 4.0 * double(k) * (double(n) + (at_once ? -1.0 : 1.0) * windows);
  double const fold_ns =
      fold_bytes / kBytesPerNs * (kReferenceSms / gpu.sm_count) + (at_once ? 0.0 : kLaunchNs);
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
