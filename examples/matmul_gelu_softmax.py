"""softmax(gelu(linear(x))) as a plain PyTorch model and as a drop-in that runs one fused op.

Run it: `python examples/matmul_gelu_softmax.py`. Both classes hold the linear as `linear`, so that
one's `state_dict` loads into the other and the same seed gives the same parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutlass_ops

batch_size = 1024
in_features = 8192
out_features = 8192


class Model(nn.Module):
    """Plain PyTorch: x [batch, in_features] -> probabilities [batch, out_features]."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(F.gelu(self.linear(x)), dim=1)


class ModelNew(nn.Module):
    """The same model in one fused op."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return cutlass_ops.linear_gelu_softmax(x, self.linear.weight, self.linear.bias)


def get_inputs() -> list[Tensor]:
    """Arguments of `forward`."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[int]:
    """Arguments of both constructors."""
    return [in_features, out_features]


def main() -> None:
    """Compare the two models; smaller sizes on a CPU."""
    from compare import compare_models, pick_device

    device = pick_device()
    small = device.type == "cpu"
    batch, sizes = (64, (1024, 1024)) if small else (batch_size, (in_features, out_features))
    if small:
        print(f"No GPU: x [{batch}, {sizes[0]}] in place of [{batch_size}, {in_features}].")
    compare_models(Model, ModelNew, sizes, torch.rand(batch, sizes[0]), device)


if __name__ == "__main__":
    main()
