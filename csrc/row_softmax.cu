#include "cutlass_ops/kernel/row_softmax.h"

#include "cutlass_ops/dependent_launch.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/epilogue/softmax_gelu.h"
#include "cutlass_ops/hopper_code.h"
#include "cutlass_ops/kernel/row_softmax_cluster.h"
#include "cutlass_ops/kernel/row_softmax_streaming.h"
#include "cutlass_ops/launch.h"
#include "cutlass_ops/launch_cluster.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

template <class... Rows>
struct Configurations {};

using kernel::RegisterRows;
/// From small to large: the first that takes a row has it. Measured on the H200 at the largest
/// row of each, from 1024 columns on: 97 to 99 % of the bandwidth of a copy, 93 % the largest
/// cluster's. The clusters of 320 threads take what left too few threads of the next one busy:
/// 20 000 columns went from 81 to 91 %, 40 000 from 77 to 86.
using RowConfigurations =
    Configurations<RegisterRows<1, 8>, RegisterRows<1, 8, 1, 1>, RegisterRows<8, 8>,
                   RegisterRows<32, 16>, RegisterRows<32, 32>, RegisterRows<64, 32>,
                   RegisterRows<128, 32>, RegisterRows<256, 32>, RegisterRows<512, 32>,
                   RegisterRows<320, 32, 2>, RegisterRows<1024, 32>, RegisterRows<320, 32, 4>,
                   RegisterRows<512, 32, 4>>;

/// Rows too long for every configuration, and those of a cluster where there are none.
template <class Chain>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, bool, cudaStream_t stream,
                   Configurations<>) {
  return launch("row_softmax_streaming", kernel::row_softmax_streaming<Chain>, params.rows,
                kernel::StreamingRows::kThreads, stream, params);
}

/// `aligned`: every row of every operand is, and ends, at a 16-byte boundary.
template <class Chain, class Rows, class... Larger>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, bool aligned, cudaStream_t stream,
                   Configurations<Rows, Larger...>) {
  if (params.columns <= Rows::kMaxColumns && (aligned || !Rows::kWantsAlignment)) {
    if constexpr (Rows::kCluster == 1) {
      return launch_dependent<kernel::row_softmax<Rows, Chain>>(
          "row_softmax", ceil_div(params.rows, Rows::kRowsPerCta), Rows::kCtaThreads, 0, stream,
          params);
    } else {
      constexpr auto kKernel = kernel::row_softmax_cluster<Rows, Chain>;
      if (has_hopper_code<kKernel>()) {
        return launch_clusters("row_softmax_cluster", kKernel, params.rows, Rows::kCluster,
                               Rows::kCtaThreads, stream, params);
      }
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
