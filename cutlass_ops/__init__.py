"""Fused float32 linear heads for PyTorch, on CUTLASS.

``linear_gelu_softmax`` is ``softmax(gelu(F.linear(x, W, b)), -1)`` and
``linear_avgpool_gelu_scale_max`` is ``max(scale * gelu(avg_pool1d(F.linear(x, W, b), k)), -1)``,
each as one fused op; on a device without kernels the plain PyTorch reference computes the same.
"""

from importlib.metadata import PackageNotFoundError, version

from . import batching as batching  # ops and batching register the ops on import
from . import nn, reference
from . import ops as ops
from .config import explain, show_config
from .functional import linear_avgpool_gelu_scale_max, linear_gelu_softmax
from .packing import PackedLinear, pack_linear
from .parts import fold_linear, gelu_scale_max, gelu_softmax, softmax
from .precision import float32_precision, get_float32_precision, set_float32_precision

try:
    __version__ = version("cutlass_ops")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "PackedLinear",
    "__version__",
    "explain",
    "float32_precision",
    "fold_linear",
    "gelu_scale_max",
    "gelu_softmax",
    "get_float32_precision",
    "linear_avgpool_gelu_scale_max",
    "linear_gelu_softmax",
    "nn",
    "pack_linear",
    "reference",
    "set_float32_precision",
    "show_config",
    "softmax",
]
