#include "cutlass_ops/kernel/row_softmax.h"

#include "cutlass_ops/epilogue/bias.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/launch.h"
#include "row_kernels.h"

namespace cutlass_ops {
namespace {

template <class Rows, class Chain>
Status launch_rows(kernel::RowSoftmaxParams<Chain> const& params, cudaStream_t stream) {
  return launch("row_softmax", kernel::row_softmax<Rows, Chain>, grid_stride_ctas(params.rows, Rows::kRowsPerCta),
                Rows::kCtaThreads, stream, params);
}

/// The smallest configuration that holds a row in registers; rows beyond 32 768 columns stream.
template <class Chain>
Status choose_rows(kernel::RowSoftmaxParams<Chain> const& params, cudaStream_t stream) {
  using kernel::RegisterRows;
  int const columns = params.columns;
  if (columns <= RegisterRows<1, 2>::kMaxColumns) {
    return launch_rows<RegisterRows<1, 2>>(params, stream);
  }
  if (columns <= RegisterRows<8, 2>::kMaxColumns) {
    return launch_rows<RegisterRows<8, 2>>(params, stream);
  }
  if (columns <= RegisterRows<32, 4>::kMaxColumns) {
    return launch_rows<RegisterRows<32, 4>>(params, stream);
  }
  if (columns <= RegisterRows<128, 4>::kMaxColumns) {
    return launch_rows<RegisterRows<128, 4>>(params, stream);
  }
  if (columns <= RegisterRows<256, 8>::kMaxColumns) {
    return launch_rows<RegisterRows<256, 8>>(params, stream);
  }
  if (columns <= RegisterRows<1024, 8>::kMaxColumns) {
    return launch_rows<RegisterRows<1024, 8>>(params, stream);
  }
  return launch("row_softmax_streaming", kernel::row_softmax_streaming<Chain>, grid_stride_ctas(params.rows, 1),
                kernel::StreamingRows::kThreads, stream, params);
}

template <class Chain>
Status run(epilogue::MatrixSource const& source, int rows, float const* bias, float* out, cudaStream_t stream) {
  epilogue::Arguments arguments;
  arguments.bias = bias;
  epilogue::Reader reader(arguments);
  int const columns = source.columns;
  bool const vectorized = columns % 4 == 0 && epilogue::is_aligned(out);
  return choose_rows<Chain>({source, Chain::make(reader, columns), out, rows, columns, vectorized}, stream);
}

}  // namespace

Status run_row_softmax(epilogue::MatrixSource const& source, int rows, float const* bias, Activation activation,
                       float* out, cudaStream_t stream) {
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
