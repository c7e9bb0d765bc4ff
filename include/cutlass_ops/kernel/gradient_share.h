// What one thread holds of a row of the gradient of softmax(activation(h)), h = z + bias, in
// registers, and what it does with it.
#pragma once

#include <cstdint>

#include "cutlass_ops/kernel/row_share.h"

namespace cutlass_ops {
namespace kernel {

struct RowGradientParams {
  epilogue::MatrixSource g;
  epilogue::MatrixSource y;
  epilogue::MatrixSource z;
  epilogue::Bias bias;
  float* dz;  ///< [rows, columns], contiguous
  /// [groups of threads, columns]: the sum over the rows of each group; nullptr for no sums. The
  /// streaming kernel makes none, and rows that are not aligned have none: another thread has a
  /// column in the next of them.
  float* sums;
  int rows;
  int columns;
  bool vectorized;  ///< rows of `dz` are 16-byte aligned; for the streaming kernel
};

/// Of 512 threads an SM each has 128 registers, and three operands of 32 columns take 96 of them:
/// as much in flight as 1024 threads of 16 columns would have, whose other 16 registers are too
/// few.
template <int kThreads_, int kColumns_, int kWidth_ = 4>
struct GradientRows : RegisterRows<kThreads_, kColumns_, 1, kWidth_> {
  static constexpr int kMinCtas = 512 / RegisterRows<kThreads_, kColumns_, 1, kWidth_>::kCtaThreads;
};

/// weight * (g - sum) as the difference of two products, each rounded. Of g's with one exponent the
/// difference g - sum would round all alike, by as much as the sum is off their grid: an error of
/// up to half a unit in the last place of g that adds up over the row. At 16 384 columns dx was 5
/// times as far off as eager PyTorch's. Not contracted: where g is the sum, as in a row of one
/// column, it is 0.
CUTLASS_OPS_HOST_DEVICE float weighted_rest(float weight, float g, float sum) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(weight, g) - __fmul_rn(weight, sum);
#else
  return weight * g - weight * sum;
#endif
}

/// dz = activation'(h) * y * (g - sum(g * y)), from g, the gradient of y, from y and from z. Each
/// operand is cut as the row of dz is; one that lies otherwise is read column by column. Where a
/// share of the softmax has z this one has y, and later activation'(h) * y.
template <class Rows>
struct GradientShare : RowShare<Rows> {
  using Base = RowShare<Rows>;
  using Base::column;
  using Base::edge;
  using Base::holds;
  using Base::holds_edge;
  using Base::kFragments;
  using Base::kStep;
  using Base::kWidth;
  using Base::to_edge;
  using Base::z;
  using typename Base::Fragment;

  Fragment g[kFragments];
  Fragment h[kFragments];
  float edge_g;
  float edge_h;

  /// All loads of the three are issued before the first is waited for.
  CUTLASS_OPS_HOST_DEVICE void load(RowGradientParams const& params, int row) {
    float const* const first_g = place(params.g, row);
    float const* const first_z = place(params.z, row);
    this->read(g, first_g, 0);
    this->read(h, first_z, 0);
    if (holds_edge()) {
      edge_g = first_g[to_edge];
      edge_h = first_z[to_edge];
    }
    Base::load(place(params.y, row));
  }

  /// Takes activation' into y; the sum of g * y. The bias comes one fragment at a time: there are
  /// no registers for more.
  template <class Activation>
  CUTLASS_OPS_HOST_DEVICE float weigh(epilogue::Bias const& bias) {
    this->forget();
    float const* const addend = bias.bias + column;
    bool const biased = bias.bias != nullptr;
    float sum = 0.0f;
    if (holds_edge()) {
      edge_h += biased ? addend[to_edge] : 0.0f;
      sum = edge_g * edge;
      edge *= Activation::derivative(edge_h);
    }
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      if (holds(i)) {
        if (biased) {
          Fragment other[1] = {};
          this->read(other, addend, i);
          h[i] += other[0];
        }
        sum += weigh<Activation>(g[i], z[i], h[i]);
      }
    }
    return sum;
  }

  /// The gradient to `first`; each fragment of it goes to `also(i, fragment)`, too.
  template <class Also>
  CUTLASS_OPS_HOST_DEVICE void store(float* first, float sum, Also also) {
    this->forget();
    if (holds_edge()) {
      first[to_edge] = weighted_rest(edge, edge_g, sum);
    }
    CUTLASS_OPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      if (holds(i)) {
        Fragment dz;
        CUTLASS_OPS_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          dz[j] = weighted_rest(z[i][j], g[i][j], sum);
        }
        *reinterpret_cast<Fragment*>(first + i * kStep) = dz;
        also(i, dz);
      }
    }
  }

 private:
  CUTLASS_OPS_HOST_DEVICE float const* place(epilogue::MatrixSource const& source, int row) const {
    return source.data + row * source.row_stride + column;
  }

  template <class Activation>
  CUTLASS_OPS_HOST_DEVICE static float weigh(Fragment const& g, Fragment& y, Fragment const& h) {
    float part = 0.0f;
    CUTLASS_OPS_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      part += g[j] * y[j];
      y[j] *= Activation::derivative(h[j]);
    }
    return part;
  }
};

}  // namespace kernel
}  // namespace cutlass_ops
