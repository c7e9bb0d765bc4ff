#include "cutlass_ops/kernel/row_softmax.h"

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/softmax_gelu.h"
#include "cutlass_ops/hopper_code.h"
#include "cutlass_ops/kernel/row_softmax_cluster.h"
#include "cutlass_ops/kernel/row_softmax_shared.h"
#include "cutlass_ops/kernel/row_softmax_streaming.h"
#include "cutlass_ops/launch.h"
#include "cutlass_ops/launch_cluster.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

template <class... Rows>
struct Configurations {};

using kernel::RegisterRows;
using kernel::SharedRows;
/// From small to large: the first that takes a row has it. Measured on the H200 at the largest row
/// of each that has all of it in registers, from 1024 columns on: 97 to 99 % of the bandwidth of a
/// copy.
using RowConfigurations =
    Configurations<RegisterRows<1, 8>, RegisterRows<1, 8, 1, 1>, RegisterRows<8, 8>,
                   RegisterRows<32, 16>, RegisterRows<32, 32>, RegisterRows<64, 32>,
                   RegisterRows<128, 32>, RegisterRows<256, 32>, RegisterRows<512, 32>,
                   SharedRows<512, 24, 32>, RegisterRows<1024, 32>, RegisterRows<512, 32, 4>,
                   SharedRows<1024, 24, 40>>;

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  bool const known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return known ? value : 0;
}

/// Whether a configuration takes these rows, on this device. `aligned`: every row of every operand
/// begins and ends at a 16-byte boundary.
template <class Rows>
bool takes(int rows, int columns, bool aligned) {
  if (columns > Rows::kMaxColumns || (Rows::kWantsAlignment && !aligned)) {
    return false;
  }
  if constexpr (Rows::kSharedBytes > 0) {
    constexpr int kReductions = 1024;  // static shared memory, and what the device takes of it
    return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >=
           Rows::kSharedBytes + kReductions;
  }
  // Clusters where all have a place at once, and a CTA a row would leave SMs idle.
  return Rows::kCluster == 1 ||
         rows * Rows::kCluster <= device_attribute(cudaDevAttrMultiProcessorCount) * Rows::kMinCtas;
}

/// Rows too long for every configuration.
template <class Chain>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, bool, cudaStream_t stream,
                   Configurations<>) {
  return launch("row_softmax_streaming", kernel::row_softmax_streaming<Chain>, params.rows,
                kernel::StreamingRows::kThreads, stream, params);
}

template <class Chain, class Rows, class... Larger>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, bool aligned, cudaStream_t stream,
                   Configurations<Rows, Larger...>) {
  if (takes<Rows>(params.rows, params.columns, aligned)) {
    std::int64_t const ctas = ceil_div(params.rows, Rows::kRowsPerCta);
    if constexpr (Rows::kCluster > 1) {
      constexpr auto kKernel = kernel::row_softmax_cluster<Rows, Chain>;
      if (has_hopper_code<kKernel>()) {
        return launch_clusters("row_softmax_cluster", kKernel, params.rows, Rows::kCluster,
                               Rows::kCtaThreads, stream, params);
      }
    } else if constexpr (Rows::kSharedBytes > 0) {
      constexpr auto kKernel = kernel::row_softmax_shared<Rows, Chain>;
      Status const status =
          allow_dynamic_shared<kKernel, Rows::kSharedBytes>("row_softmax: shared memory");
      return !status.ok()
                 ? status
                 : launch_dependent<kKernel>("row_softmax_shared", ctas, Rows::kCtaThreads,
                                             kernel::RowRest<Rows>::shared_bytes(params.columns),
                                             stream, params);
    } else {
      return launch_dependent<kernel::row_softmax<Rows, Chain>>(
          "row_softmax", ctas, Rows::kCtaThreads, 0, stream, params);
    }
  }
  return choose_rows(params, aligned, stream, Configurations<Larger...>{});
}

template <class Chain>
Status run(epilogue::MatrixSource const& source, int rows, float const* bias, float* out,
           cudaStream_t stream) {
  epilogue::Arguments arguments;
  arguments.bias = bias;
  epilogue::Reader reader(arguments);
  int const columns = source.columns;
  auto const add_bias = epilogue::Bias::make(reader, columns);
  bool const vectorized = columns % 4 == 0 && epilogue::is_aligned(out);
  kernel::RowSoftmaxParams<Chain> const params{
      source, add_bias, Chain::make(reader, columns), out, rows, columns, vectorized};
  bool const aligned = vectorized && source.vectorized && add_bias.vectorized;
  return choose_rows(params, aligned, stream, RowConfigurations{});
}

}  // namespace

Status run_row_softmax(epilogue::MatrixSource const& source, int rows, float const* bias,
                       Activation activation, float* out, cudaStream_t stream) {
  using namespace epilogue;
  switch (activation) {
    case Activation::kGelu:
      return run<Chain<SoftmaxGelu>>(source, rows, bias, out, stream);
    case Activation::kGeluTanh:
      return run<Chain<GeluTanh>>(source, rows, bias, out, stream);
    default:
      return run<Chain<>>(source, rows, bias, out, stream);
  }
}

}  // namespace cutlass_ops
