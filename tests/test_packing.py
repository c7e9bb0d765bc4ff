"""PackedLinear: an explicit snapshot, saved, loaded and refused as one."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from fused import BOTH, Fused, linear_like, pool_max_op, same_bits, softmax_op
from hypothesis import given
from operands import Linear
from oracle import check
from strategies import Case, cases

import cutlass_ops
from cutlass_ops import precision


@given(case=cases(pooled=True))
def test_packed_pooled_op(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=case.kernel_size)
    y = cutlass_ops.linear_avgpool_gelu_scale_max(
        x, pack, scale=case.scale, approximate=case.approximate
    )
    op = pool_max_op(case.kernel_size, case.scale, case.approximate)
    check(y, op.head, Linear(x, weight, bias))


@given(case=cases())
def test_packed_softmax_op(case: Case, device: str) -> None:
    x, weight, bias = case.tensors(device)
    pack = cutlass_ops.pack_linear(weight, bias)
    y = cutlass_ops.linear_gelu_softmax(x, pack, approximate=case.approximate)
    check(y, softmax_op(case.approximate).head, Linear(x, weight, bias))


@given(case=cases(pooled=True, planted=True, empty=False))
def test_packed_op_keeps_nan(case: Case, device: str) -> None:
    """NaN in any operand, and infinities in weight or bias, as unpacked. An infinite x is left out:
    the means of a window do not tell whether its weights had one sign."""
    if "inf" in case.plant and case.plant.startswith("x"):
        return
    x, weight, bias = case.tensors(device)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=case.kernel_size)
    y = cutlass_ops.linear_avgpool_gelu_scale_max(
        x, pack, scale=case.scale, approximate=case.approximate
    )
    op = pool_max_op(case.kernel_size, case.scale, case.approximate)
    check(y, op.head, Linear(x, weight, bias))


def test_a_pack_is_a_snapshot(device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias)
    before = cutlass_ops.linear_gelu_softmax(x, pack)
    weight.zero_()
    bias.zero_()
    assert same_bits(cutlass_ops.linear_gelu_softmax(x, pack), before)


def test_packing_parameters_records_no_graph(device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device, requires_grad=True)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=3)
    assert not any(t.requires_grad for t in pack.buffers())
    y = cutlass_ops.linear_avgpool_gelu_scale_max(x.detach(), pack)
    assert not y.requires_grad


def test_an_x_that_requires_grad_is_refused(device: str) -> None:
    """A pack is for inference; a silent None gradient would be worse than an error."""
    x, weight, bias = linear_like(5, 12, 8, device)
    x.requires_grad_()
    pack = cutlass_ops.pack_linear(weight, bias)
    for call in (
        lambda: cutlass_ops.linear_gelu_softmax(x, pack),
        lambda: cutlass_ops.linear_avgpool_gelu_scale_max(x, pack),
    ):
        with pytest.raises(RuntimeError, match="requires grad"):
            call()
        with torch.no_grad():
            call()
        with torch.inference_mode():
            call()


def test_arguments_that_contradict_the_pack(device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=3)
    pooled = cutlass_ops.linear_avgpool_gelu_scale_max
    with pytest.raises(ValueError, match="bias"):
        pooled(x, pack, bias)
    with pytest.raises(ValueError, match=r"kernel_size.*4.*3|kernel_size.*3.*4"):
        pooled(x, pack, kernel_size=4)
    other = "ieee" if pack.precision == "fp16x3" else "fp16x3"
    with pytest.raises(ValueError, match=rf"precision.*{other}"):
        pooled(x, pack, precision=other)
    with pytest.raises(ValueError, match=r"kernel_size.*3"):
        cutlass_ops.linear_gelu_softmax(x, pack)
    with pytest.raises(ValueError, match="weight"):
        pooled(x[:, :5], pack)
    assert same_bits(pooled(x, pack, kernel_size=3, precision=pack.precision), pooled(x, pack))


@pytest.mark.parametrize("with_bias", [True, False])
def test_saving_loading_copying_moving(with_bias: bool, device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias if with_bias else None, kernel_size=3)
    expected = cutlass_ops.linear_avgpool_gelu_scale_max(x, pack)
    file = io.BytesIO()
    torch.save(pack, file)
    file.seek(0)
    others = [
        torch.load(file, weights_only=False),
        pickle.loads(pickle.dumps(pack)),
        copy.deepcopy(pack),
        copy.deepcopy(pack).cpu().to(device),
    ]
    restored = cutlass_ops.pack_linear(
        torch.zeros_like(weight), torch.zeros_like(bias) if with_bias else None, kernel_size=3
    )
    restored.load_state_dict(pack.state_dict())
    for other in [*others, restored]:
        assert same_bits(cutlass_ops.linear_avgpool_gelu_scale_max(x, other), expected)


REFUSED = {
    "kernel_size": lambda state: cutlass_ops.pack_linear(
        torch.ones(4, 8), torch.ones(4), kernel_size=2
    ).state_dict(),
    "out_features": lambda state: cutlass_ops.pack_linear(
        torch.ones(7, 8), torch.ones(7), kernel_size=3
    ).state_dict(),
    "size mismatch": lambda state: state | {"weight": torch.ones(2, 9)},
    "packed with version None": lambda state: state | {"_extra_state": None},
    "packed without a bias": lambda state: {k: v for k, v in state.items() if k != "bias"},
}


@pytest.mark.parametrize("word", REFUSED)
@pytest.mark.parametrize("assign", [False, True])
def test_a_refused_state_dict_changes_nothing(word: str, assign: bool, device: str) -> None:
    """The buffers were overwritten when the error came: [4, 8] by 2 and [6, 8] by 3 are both
    [2, 8]."""
    _, weight, bias = linear_like(1, 6, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=3)
    before = copy.deepcopy(pack.state_dict())
    other = cutlass_ops.pack_linear(torch.ones_like(weight), torch.ones_like(bias), kernel_size=3)
    state = REFUSED[word](dict(other.state_dict()))
    with pytest.raises(RuntimeError, match=word):
        pack.load_state_dict(state, assign=assign)
    assert same_bits(pack.weight, before["weight"])
    assert same_bits(pack.bias, before["bias"])
    assert pack.get_extra_state() == before["_extra_state"]
    model = torch.nn.Sequential(pack)
    with pytest.raises(RuntimeError, match=word):
        model.load_state_dict({f"0.{key}": value for key, value in state.items()}, assign=assign)
    assert same_bits(pack.weight, before["weight"])
    model.load_state_dict({f"0.{key}": value for key, value in other.state_dict().items()})
    assert same_bits(pack.weight, other.weight)


def test_a_bias_too_many_is_refused(device: str) -> None:
    _, weight, bias = linear_like(1, 6, 8, device)
    pack = cutlass_ops.pack_linear(weight)
    with pytest.raises(RuntimeError, match="packed with a bias"):
        pack.load_state_dict(cutlass_ops.pack_linear(2 * weight, bias).state_dict())
    assert same_bits(pack.weight, weight)


def test_a_state_dict_that_is_not_strict(device: str) -> None:
    """What fits is loaded; another packing is refused all the same."""
    _, weight, bias = linear_like(1, 6, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias, kernel_size=3)
    ones = torch.ones(2, 8, device=device)
    result = pack.load_state_dict({"weight": ones, "more": ones}, strict=False)
    assert same_bits(pack.weight, ones)
    assert set(result.missing_keys) == {"bias", "_extra_state"}
    assert result.unexpected_keys == ["more"]
    other = cutlass_ops.pack_linear(weight[:4], bias[:4], kernel_size=2)
    with pytest.raises(RuntimeError, match="out_features 4 instead of 6, kernel_size 2 instead"):
        pack.load_state_dict(other.state_dict(), strict=False)
    assert same_bits(pack.weight, ones)


def test_float64_and_half_packs(device: str) -> None:
    x, weight, bias = linear_like(5, 12, 8, device)
    pack = cutlass_ops.pack_linear(weight, bias).double()
    assert cutlass_ops.linear_gelu_softmax(x.double(), pack).dtype == torch.float64
    with pytest.raises(TypeError, match="float"):
        cutlass_ops.linear_gelu_softmax(x, pack)
    with pytest.raises(TypeError, match="float16"):
        cutlass_ops.pack_linear(weight.half(), bias.half())


@pytest.mark.filterwarnings("ignore:cutlass_ops. precision 'fp16x3' has no native kernel")
@pytest.mark.parametrize("mode", precision.MODES)
def test_repr_tells_shapes_and_bytes(mode: str) -> None:
    """On the CPU, where no pack has halves."""
    _, weight, bias = linear_like(1, 12, 8, "cpu")
    text = repr(cutlass_ops.pack_linear(weight, bias, kernel_size=3, precision=mode))
    for part in ("PackedLinear", "12", "8", "kernel_size=3", mode, str(4 * (4 * 8 + 4))):
        assert part in text


def test_a_pack_is_not_called() -> None:
    _, weight, bias = linear_like(1, 12, 8, "cpu")
    with pytest.raises(TypeError, match="pass it where"):
        cutlass_ops.pack_linear(weight, bias)(torch.ones(1, 8))


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_a_half_pack_under_autocast(op: Fused, device: str) -> None:
    """A pack in half was refused under autocast, where a module in half and a weight in half are
    cast up; without autocast it is refused as they are."""
    x, weight, bias = linear_like(5, 12, 8, device)
    function = getattr(cutlass_ops, op.op.name().split("::")[1])
    pack = cutlass_ops.pack_linear(weight, bias).half()
    with torch.autocast(device, dtype=torch.float16):
        y = function(x.half(), pack)
    assert y.dtype == torch.float32
    widened = cutlass_ops.pack_linear(weight.half().float(), bias.half().float())
    assert same_bits(y, function(x.half().float(), widened))
    with pytest.raises(TypeError, match="float16"):
        function(x.half(), pack)


def test_packing_under_autocast(device: str) -> None:
    """As the heads do: half weights are cast up, in a pack once and for all."""
    x, weight, bias = linear_like(4, 12, 8, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        pack = cutlass_ops.pack_linear(weight.bfloat16(), bias.bfloat16())
    assert pack.weight.dtype == torch.float32
    expected = cutlass_ops.linear_gelu_softmax(
        x, weight.bfloat16().float(), bias.bfloat16().float()
    )
    assert same_bits(cutlass_ops.linear_gelu_softmax(x, pack), expected)
