#include "cost_model.h"

#include <algorithm>

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

/// Share of the FFMA rate that so many warps on an SM reach: 4 hide little latency, 12 all of it.
double warp_efficiency(double warps) { return std::min(1.0, 0.3 + 0.075 * warps); }

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

}  // namespace

double estimate_ns(KernelInfo const& kernel, PlanRequest const& request, Plan const& plan) {
  double ns = 0.0;
  switch (kernel.family) {
    case KernelFamily::kSkinny:
      ns = skinny_ns(request, plan.splits);
      break;
    case KernelFamily::kStreamK:
      ns = stream_ns(kernel, request);
      break;
    case KernelFamily::kFp16x3:
      ns = fp16x3_ns(kernel, request, plan.splits);
      break;
    case KernelFamily::kFp16x3Narrow:
      ns = fp16x3_narrow_ns(kernel, request, plan.splits);
      break;
    case KernelFamily::kSimt:
    case KernelFamily::kTransposing:
      ns = gemm_ns(kernel, request, plan);
      break;
  }
  if (!plan.direct) {
    return ns + partials_ns(request, plan.splits);
  }
  bool const combines = request.reduces && ceil_div(request.n, kernel.tile_n) > 1;
  return ns + (combines ? kLaunchNs : 0.0);
}

double estimate_fold_ns(int n, int windows, int k, Gpu gpu, bool at_once) {
  double const bytes = 4.0 * double(k) * (double(n) + (at_once ? -1.0 : 1.0) * windows);
  return bytes / kBytesPerNs * (kReferenceSms / gpu.sm_count) + (at_once ? 0.0 : kLaunchNs);
}

}  // namespace cutlass_ops
