"""Whether a call is handed the halves of a pack: with another weight in the place of its own, under
autocast, in graphs and in traces."""

from __future__ import annotations

import pytest
import torch
from fake_kernels import Kernels
from fused import linear_like
from packs import has_its_halves, split_pack
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cutlass_ops
from cutlass_ops import precision


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_another_weight_in_its_place_is_used_without_the_halves(
    kernel_size: int, kernels: Kernels
) -> None:
    """Those of the old one were used."""
    x, pack = split_pack(kernel_size)
    make = {
        1: cutlass_ops.nn.PackedLinearGELUSoftmax,
        3: cutlass_ops.nn.PackedLinearAvgPoolGELUScaleMax,
    }
    module = make[kernel_size](pack)
    weight, expected = pack.weight, module(x)
    for other in (torch.randn_like(weight), torch.nn.Parameter(torch.randn_like(weight))):
        with torch.no_grad():
            y = torch.func.functional_call(module, {"packed.weight": other}, (x,))
        assert not kernels.products.pop()[1]
        assert not torch.equal(y, expected)
        assert torch.equal(module(x), expected)
        assert kernels.products.pop()[1]
    pack.weight = torch.randn_like(weight)
    assert not torch.equal(module(x), expected)
    assert not kernels.products.pop()[1]
    del weight  # another tensor may be where it was
    for _ in range(20):
        pack.weight = torch.randn_like(pack.weight)
        assert pack.halves(pack.weight) is None
    pack.load_state_dict(pack.state_dict())
    assert has_its_halves(pack)


def test_who_replaces_the_weight_and_the_halves_gets_both(kernels: Kernels) -> None:
    x, pack = split_pack(1)
    module = cutlass_ops.nn.PackedLinearGELUSoftmax(pack)
    other = cutlass_ops.pack_linear(torch.randn(12, 8), precision="fp16x3")
    with_bias = {"packed.bias": torch.zeros(12)}
    both = with_bias | {"packed.weight": other.weight, "packed.pairs": other.pairs}
    y = torch.func.functional_call(module, both, (x,))
    assert kernels.products.pop()[1]
    torch.testing.assert_close(y, cutlass_ops.linear_gelu_softmax(x, other))
    assert has_its_halves(pack)


def test_another_weight_in_a_graph(kernels: Kernels) -> None:
    """Halves of the old one would be silent there, too."""
    torch._dynamo.reset()
    x, pack = split_pack(1)
    module = cutlass_ops.nn.PackedLinearGELUSoftmax(pack)
    graphs: list[torch.fx.Graph] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.nn.Module:
        graphs.append(graph.graph)
        return graph

    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for handed in (True, False):
        torch.testing.assert_close(compiled(x), module(x))
        (call,) = (node for node in graphs[-1].nodes if "cutlass_ops" in str(node.target))
        assert isinstance(call.args[-1], torch.fx.Node) == handed
        pack.weight = torch.randn_like(pack.weight)
    assert len(graphs) == 2


def test_halves_under_autocast_and_in_ieee(kernels: Kernels) -> None:
    """Autocast passes them on; a pack whose mode was changed by hand does not use them."""
    x, pack = split_pack(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for head in (cutlass_ops.linear_gelu_softmax, cutlass_ops.linear_avgpool_gelu_scale_max):
            assert head(x.bfloat16(), pack).dtype == torch.float32
    assert [halves for _, halves in kernels.products] == [True, True]
    pack.precision = "ieee"
    cutlass_ops.linear_gelu_softmax(x, pack)
    assert not kernels.products[-1][1]


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_halves_are_part_of_a_graph(kernel_size: int, kernels: Kernels) -> None:
    """torch.compile and torch.export take them for what they are, a buffer of the pack."""
    torch._dynamo.reset()
    x, pack = split_pack(kernel_size)
    make = {
        1: cutlass_ops.nn.PackedLinearGELUSoftmax,
        3: cutlass_ops.nn.PackedLinearAvgPoolGELUScaleMax,
    }
    module = make[kernel_size](pack)
    graphs: list[torch.fx.Graph] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.nn.Module:
        graphs.append(graph.graph)
        return graph

    expected = module(x)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend=backend)(x), expected)
    program = torch.export.export(module, (x,))
    torch.testing.assert_close(program.module()(x), expected)
    for graph in (*graphs, program.graph):
        (call,) = (node for node in graph.nodes if "cutlass_ops" in str(node.target))
        assert isinstance(call.args[-1], torch.fx.Node)
        assert "pairs" in call.args[-1].name
        assert "fp16x3" in call.args


@pytest.mark.parametrize("mode", precision.MODES)
def test_packing_inside_a_trace_or_a_transform_makes_no_halves(mode: str, kernels: Kernels) -> None:
    torch._dynamo.reset()
    x, weight, _ = linear_like(5, 12, 8, "cpu")

    def packed(x: Tensor, weight: Tensor) -> Tensor:
        pack = cutlass_ops.pack_linear(weight, kernel_size=3, precision=mode)
        return cutlass_ops.linear_avgpool_gelu_scale_max(x, pack)

    expected = packed(x, weight)
    kernels.ran.clear()
    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, weight), expected)
    mapped = torch.func.vmap(packed, (None, 0))(x, torch.stack([weight, weight]))
    torch.testing.assert_close(mapped, torch.stack([expected, expected]))
    with FakeTensorMode() as fake:
        assert packed(fake.from_tensor(x), fake.from_tensor(weight)).shape == expected.shape
    assert "split_rows" not in kernels.ran
