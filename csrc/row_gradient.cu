#include "row_gradient.h"

#include "cutlass_ops/dynamic_shared.h"
#include "cutlass_ops/epilogue/gelu.h"
#include "cutlass_ops/kernel/row_softmax_gradient.h"
#include "cutlass_ops/launch.h"

namespace cutlass_ops {
namespace {

using kernel::GradientRows;
using kernel::RowGradientParams;

/// From small to large: the first that takes a row has it.
template <class... Rows>
struct Configurations {
  static int threads(int columns) {
    int found = 0;
    static_cast<void>(((columns <= Rows::kMaxColumns && (found = Rows::kThreads) > 0) || ...));
    return found;
  }

  /// `aligned`: every row of every operand begins and ends at a 16-byte boundary.
  template <class Activation>
  static Status run(RowGradientParams const& params, int groups, bool aligned,
                    cudaStream_t stream) {
    Status status;
    bool const taken = ((columns_fit<Rows>(params, aligned) &&
                         (status = launch_rows<Rows, Activation>(params, groups, stream), true)) ||
                        ...);
    if (taken) {
      return status;
    }
    if (params.sums != nullptr) {
      return {cudaErrorInvalidValue, "row_gradient: rows too long for sums"};
    }
    return launch("row_softmax_gradient_streaming",
                  kernel::row_softmax_gradient_streaming<Activation>, params.rows,
                  kernel::StreamingRows::kThreads, stream, params);
  }

 private:
  template <class One>
  static bool columns_fit(RowGradientParams const& params, bool aligned) {
    return params.columns <= One::kMaxColumns && (aligned || !One::kWantsAlignment);
  }

  template <class One, class Activation>
  static Status launch_rows(RowGradientParams const& params, int groups, cudaStream_t stream) {
    constexpr auto kKernel = kernel::row_softmax_gradient<One, Activation>;
    constexpr int kSlotBytes = One::kCtaThreads * One::kColumns * int(sizeof(float));
    if (params.sums == nullptr) {
      return launch_dependent<kKernel>("row_softmax_gradient",
                                       ceil_div(params.rows, One::kRowsPerCta), One::kCtaThreads, 0,
                                       stream, params);
    }
    if (groups % One::kRowsPerCta != 0) {
      return {cudaErrorInvalidValue, "row_gradient: groups of which some are no CTA's"};
    }
    Status const status = allow_dynamic_shared<kKernel, kSlotBytes>("row_gradient: shared memory");
    return !status.ok()
               ? status
               : launch_dependent<kKernel>("row_softmax_gradient", groups / One::kRowsPerCta,
                                           One::kCtaThreads, kSlotBytes, stream, params);
  }
};

using RowConfigurations =
    Configurations<GradientRows<1, 8>, GradientRows<1, 8, 1>, GradientRows<8, 8>,
                   GradientRows<32, 16>, GradientRows<64, 16>, GradientRows<64, 32>,
                   GradientRows<128, 32>, GradientRows<256, 32>, GradientRows<512, 32>>;

}  // namespace

int row_gradient_groups(int rows, int columns) {
  constexpr int kThreadsInAll = 1 << 16;  // what 128 SMs hold at a time of the largest
  constexpr int kLeastRows = 4;  // of a group: with fewer the sums are nearly as long as dz
  int const threads = columns % 4 == 0 ? RowConfigurations::threads(columns) : 0;
  if (threads == 0 || rows < kLeastRows * (kThreadsInAll / threads)) {
    return 0;
  }
  return kThreadsInAll / threads;
}

Status run_row_gradient(kernel::RowGradientParams const& params, int groups, Activation activation,
                        cudaStream_t stream) {
  bool const aligned = params.vectorized && params.g.vectorized && params.y.vectorized &&
                       params.z.vectorized && params.bias.vectorized;
  if (params.sums != nullptr && !params.vectorized) {
    return {cudaErrorInvalidValue, "row_gradient: rows that are not aligned have no sums"};
  }
  switch (activation) {
    case Activation::kGelu:
      return RowConfigurations::run<epilogue::Gelu>(params, groups, aligned, stream);
    case Activation::kGeluTanh:
      return RowConfigurations::run<epilogue::GeluTanh>(params, groups, aligned, stream);
    default:
      return {cudaErrorInvalidValue, "row_gradient: an activation without a derivative"};
  }
}

}  // namespace cutlass_ops
