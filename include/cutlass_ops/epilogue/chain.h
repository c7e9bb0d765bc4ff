// Chain: the steps of an epilogue, composed so that the last step pulls what it needs from the ones
// before it.
//
// A *source* has `load<F>(row, column) -> Fragment<F>`: F consecutive columns of one row of
// pre-activations. Every adapter offers one (a staged accumulator tile, a matrix in memory).
//
// An *elementwise step* has
//   Fragment<F> operator()(Fragment<F>, int row, int column) const
//
// A *windowed step* reads several columns per output column. It has
//   static constexpr bool kWindowed = true
//   Fragment<F> pull<F>(source, int row, int column) const
//   int window() const, the columns read per column produced
//
// Both have, to be made from the arguments of a call,
//   static Step make(Reader&, int columns), with the columns at this place of the chain
#pragma once

#include <type_traits>

#include "cutlass_ops/epilogue/arguments.h"
#include "cutlass_ops/epilogue/fragment.h"

namespace cutlass_ops {
namespace epilogue {

template <class Step, class = void>
struct is_windowed : std::false_type {};
template <class Step>
struct is_windowed<Step, std::enable_if_t<Step::kWindowed>> : std::true_type {};

/// A source seen through one step, itself a source.
template <class Step, class Source>
struct Stage {
  Step const& step;
  Source const& source;

  template <int kWidth>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> load(int row, int column) const {
    if constexpr (is_windowed<Step>::value) {
      return step.template pull<kWidth>(source, row, column);
    } else {
      return step(source.template load<kWidth>(row, column), row, column);
    }
  }
};

template <class... Steps>
struct Chain;

template <>
struct Chain<> {
  static constexpr bool kHasWindow = false;

  static Chain make(Reader&, int) { return {}; }
  int window() const { return 1; }

  template <int kWidth, class Source>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> evaluate(Source const& source, int row,
                                                    int column) const {
    return source.template load<kWidth>(row, column);
  }
};

template <class First, class... Rest>
struct Chain<First, Rest...> {
  static constexpr bool kHasWindow = is_windowed<First>::value || Chain<Rest...>::kHasWindow;

  First first;
  Chain<Rest...> rest;

  static Chain make(Reader& reader, int columns) {
    // Two statements: the order in which steps take their numbers must be the order of the chain.
    First step = First::make(reader, columns);
    return {step, Chain<Rest...>::make(reader, columns / width(step))};
  }

  /// Columns of the linear that make one output column.
  int window() const { return width(first) * rest.window(); }

  /// `kWidth` output columns, the first of which is `column`, counted after pooling.
  template <int kWidth, class Source>
  CUTLASS_OPS_HOST_DEVICE Fragment<kWidth> evaluate(Source const& source, int row,
                                                    int column) const {
    return rest.template evaluate<kWidth>(Stage<First, Source>{first, source}, row, column);
  }

 private:
  static int width(First const& step) {
    if constexpr (is_windowed<First>::value) {
      return step.window();
    } else {
      return 1;
    }
  }
};

/// Output columns that a thread evaluates at a time. Windows are long already: one at a time keeps
/// registers low.
template <class ChainType>
constexpr int fragment_width() {
  return ChainType::kHasWindow ? 1 : 4;
}

/// An epilogue: the steps, and the sink that takes their result.
template <class Chain_, class Sink_>
struct Description {
  using Chain = Chain_;
  using Sink = Sink_;
};

}  // namespace epilogue
}  // namespace cutlass_ops
