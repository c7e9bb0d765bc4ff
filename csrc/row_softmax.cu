#include "cutlass_ops/kernel/row_softmax.h"

#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/launch.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

/// Rows longer than any configuration holds in registers. Larger configurations leave two CTAs on
/// an SM, which then wait for each other: 1928 GB/s at 16 384 columns and 1478 at 32 768, against
/// 2662 for streaming at 65 536 (H200).
template <class Chain>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, cudaStream_t stream) {
  return launch("row_softmax_streaming", kernel::row_softmax_streaming<Chain>,
                grid_stride_ctas(params.rows, 1), kernel::StreamingRows::kThreads, stream, params);
}

/// The first configuration, of a list from small to large, that holds a row.
template <class Chain, class Rows, class... Larger>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, cudaStream_t stream) {
  if (params.columns <= Rows::kMaxColumns) {
    return launch("row_softmax", kernel::row_softmax<Rows, Chain>,
                  grid_stride_ctas(params.rows, Rows::kRowsPerCta), Rows::kCtaThreads, stream,
                  params);
  }
  return choose_rows<Chain, Larger...>(params, stream);
}

template <class Chain>
Status run(epilogue::MatrixSource const& source, int rows, float const* bias, float* out,
           cudaStream_t stream) {
  epilogue::Arguments arguments;
  arguments.bias = bias;
  epilogue::Reader reader(arguments);
  int const columns = source.columns;
  bool const vectorized = columns % 4 == 0 && epilogue::is_aligned(out);
  using kernel::RegisterRows;
  return choose_rows<Chain, RegisterRows<1, 2>, RegisterRows<8, 2>, RegisterRows<32, 4>,
                     RegisterRows<32, 8>, RegisterRows<64, 8>, RegisterRows<128, 8>,
                     RegisterRows<256, 8>>(
      {source, Chain::make(reader, columns), out, rows, columns, vectorized}, stream);
}

}  // namespace

Status run_row_softmax(epilogue::MatrixSource const& source, int rows, float const* bias,
                       Activation activation, float* out, cudaStream_t stream) {
  using namespace epilogue;
  switch (activation) {
    case Activation::kGelu:
      return run<Chain<Bias, Gelu>>(source, rows, bias, out, stream);
    case Activation::kGeluTanh:
      return run<Chain<Bias, GeluTanh>>(source, rows, bias, out, stream);
    default:
      return run<Chain<Bias>>(source, rows, bias, out, stream);
  }
}

}  // namespace cutlass_ops
