"""max(scale * gelu(avg_pool(linear(x)))) in plain PyTorch and as a drop-in that runs one fused op.

Run it: `python examples/matmul_avgpool_gelu_scale_max.py`. Both classes hold the linear as
`matmul`, so that one's `state_dict` loads into the other and the same seed gives the same
parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutlass_ops

batch_size = 1024
in_features = 8192
out_features = 8192
pool_kernel_size = 16
scale_factor = 2.0


class Model(nn.Module):
    """Plain PyTorch: x [batch, in_features] -> the largest pooled activation, [batch]."""

    def __init__(
        self, in_features: int, out_features: int, pool_kernel_size: int, scale_factor: float
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.avg_pool = nn.AvgPool1d(kernel_size=pool_kernel_size)
        self.scale_factor = scale_factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.matmul(x)
        x = self.avg_pool(x.unsqueeze(1)).squeeze(1)
        x = F.gelu(x) * self.scale_factor
        return torch.max(x, dim=1).values


class ModelNew(nn.Module):
    """The same model in one fused op, which writes no [batch, out_features] activations.

    Partial sums of the product may go through memory: `cutlass_ops.explain` tells how many bytes.
    """

    def __init__(
        self, in_features: int, out_features: int, pool_kernel_size: int, scale_factor: float
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.pool_kernel_size = pool_kernel_size
        self.scale_factor = scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return cutlass_ops.linear_avgpool_gelu_scale_max(
            x,
            self.matmul.weight,
            self.matmul.bias,
            kernel_size=self.pool_kernel_size,
            scale=self.scale_factor,
        )


def get_inputs() -> list[Tensor]:
    """Arguments of `forward`."""
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[int | float]:
    """Arguments of both constructors."""
    return [in_features, out_features, pool_kernel_size, scale_factor]


def main() -> None:
    """Compare the two models; smaller sizes on a CPU."""
    from compare import compare_models, pick_device

    device = pick_device()
    small = device.type == "cpu"
    batch, sizes = (64, (1024, 1024)) if small else (batch_size, (in_features, out_features))
    if small:
        print(f"No GPU: x [{batch}, {sizes[0]}] in place of [{batch_size}, {in_features}].")
    arguments = (*sizes, pool_kernel_size, scale_factor)
    compare_models(Model, ModelNew, arguments, torch.rand(batch, sizes[0]), device)


if __name__ == "__main__":
    main()
