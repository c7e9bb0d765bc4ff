"""PackedLinear: an explicit snapshot; and, elsewhere, no hidden cache of weights."""

from __future__ import annotations

import copy
import io
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_kernels import Kernels, takes_pairs
from fused import BOTH, Fused, linear_like, pool_max_op, same_bits, softmax_op
from hypothesis import given
from oracle import Linear, check
from strategies import Case, cases
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import cutlass_ops
from cutlass_ops import _library, precision, warn, weights

both = pytest.mark.parametrize("op", BOTH, ids=repr)


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
    if case.plant in ("x inf", "x -inf"):
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


# ---- the halves of a pack for fp16x3 ----


def split_pack(kernel_size: int = 3) -> tuple[Tensor, cutlass_ops.PackedLinear]:
    """x, and a pack with halves: the stand-ins make every device one that has the mode."""
    x, weight, bias = linear_like(5, 12, 8, "cpu")
    return x, cutlass_ops.pack_linear(weight, bias, kernel_size=kernel_size, precision="fp16x3")


def has_its_halves(pack: cutlass_ops.PackedLinear) -> bool:
    """As a call would find them, which makes them if they are not there."""
    pairs = pack.halves(pack.weight)
    assert pairs is not None
    assert pairs is pack.pairs
    takes_pairs(pairs, pack.weight)
    return True


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_a_pack_for_fp16x3_holds_the_halves_of_what_it_folded(
    kernel_size: int, kernels: Kernels
) -> None:
    x, pack = split_pack(kernel_size)
    assert kernels.ran[-1] == "split_rows"
    assert has_its_halves(pack)
    assert not pack.pairs.requires_grad
    cutlass_ops.linear_avgpool_gelu_scale_max(x, pack)
    if kernel_size == 1:
        cutlass_ops.linear_gelu_softmax(x, pack)
    assert all(halves for _, halves in kernels.products)
    assert set(pack.state_dict()) == {"weight", "bias", "_extra_state"}
    size = sum(t.numel() * 4 for t in (pack.weight, pack.bias, pack.pairs))
    assert f"bytes={size}" in repr(pack)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_makes_the_halves_anew(assign: bool, kernels: Kernels) -> None:
    """In the memory that they have, which a CUDA graph reads."""
    _, pack = split_pack()
    address = pack.pairs.data_ptr()
    other = cutlass_ops.pack_linear(
        torch.randn(12, 8), torch.randn(12), kernel_size=3, precision="fp16x3"
    )
    model = torch.nn.Sequential(pack)
    state = torch.nn.Sequential(other).state_dict()
    model.load_state_dict(state, assign=assign)
    assert torch.equal(pack.weight, other.weight)
    assert has_its_halves(pack)
    assert pack.pairs.data_ptr() == address
    before = pack.pairs.clone()
    with pytest.raises(RuntimeError, match="size mismatch"):
        pack.load_state_dict(other.state_dict() | {"weight": torch.ones(2, 9)})
    assert torch.equal(pack.pairs, before)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*pairs"):
        pack.load_state_dict(other.state_dict() | {"pairs": other.pairs})


def saved(pack: cutlass_ops.PackedLinear, zipped: bool = True) -> cutlass_ops.PackedLinear:
    file = io.BytesIO()
    torch.save(pack, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda pack: pickle.loads(pickle.dumps(pack)),
    "torch.save": saved,
    # which fills storages when all else has been unpickled
    "torch.save of old": lambda pack: saved(pack, zipped=False),
    "of a module": lambda pack: copy.deepcopy(torch.nn.Sequential(pack))[0],
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_have_halves_of_their_own(how: str, kernels: Kernels) -> None:
    x, pack = split_pack()
    kernels.ran.clear()
    other = COPIES[how](pack)
    assert kernels.ran == [], "it may not have been filled yet"
    for _ in range(2):
        cutlass_ops.linear_avgpool_gelu_scale_max(x, other)
        assert kernels.products.pop()[1]
    assert kernels.ran == ["split_rows", "linear_epilogue", "linear_epilogue"]
    assert has_its_halves(other)
    assert has_its_halves(pack)
    assert other.pairs.data_ptr() != pack.pairs.data_ptr()
    other.load_state_dict({key: torch.zeros(4, 8) for key in ["weight"]}, strict=False)
    assert has_its_halves(other)
    assert has_its_halves(pack)


def test_halves_are_not_pickled(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mode is not native a loaded pack has none, and it gains them where it is."""
    _, pack = split_pack()
    data = pickle.dumps(pack)
    assert pack.__getstate__()["_buffers"]["pairs"] is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(_library, "fp16x3_reason", lambda device: "not here")
        other = pickle.loads(data)
        assert (other.precision, other.halves(other.weight)) == ("fp16x3", None)
        pack.load_state_dict(other.state_dict())
        assert pack.pairs is None
    assert has_its_halves(pickle.loads(pickle.dumps(other)))


def test_moving_makes_the_halves_anew(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is native on the CPU of this test and not on meta tensors."""
    native = lambda device: None if device.type == "cpu" else "not here"  # noqa: E731
    monkeypatch.setattr(_library, "fp16x3_reason", native)
    _, pack = split_pack()
    pairs = pack.pairs
    assert pack.to("cpu").float().pairs is pairs, "nothing moved, and a CUDA graph may read them"
    model = torch.nn.Sequential(pack).to("meta")
    assert (pack.weight.device.type, pack.pairs) == ("meta", None)
    model.to_empty(device="cpu")
    pack.load_state_dict(split_pack()[1].state_dict())
    assert has_its_halves(pack)
    assert pack.double().pairs is None
    assert has_its_halves(pack.float())
    assert pack.half().pairs is None
    assert [name for name, _ in pack.named_buffers()] == ["weight", "bias"]


def test_a_pack_made_where_the_mode_is_not_native_gains_halves(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warn, "_warned", set())
    native = lambda device: None if device.type == "cpu" else "not here"  # noqa: E731
    monkeypatch.setattr(_library, "fp16x3_reason", native)
    weight = torch.empty(12, 8, device="meta")
    with pytest.warns(UserWarning, match="fp16x3.*not here"):
        pack = cutlass_ops.pack_linear(weight, precision="fp16x3")
    assert (pack.precision, pack.pairs) == ("fp16x3", None)
    pack.load_state_dict({"weight": torch.randn(12, 8)}, strict=False, assign=True)
    assert has_its_halves(pack)


def test_halves_that_could_not_be_made_are_made_by_the_next_call(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may run out before the weight was moved, behind it, and for the halves themselves."""

    def fails(*_: object) -> Tensor:
        raise MemoryError

    x, pack = split_pack()
    pairs = pack.pairs
    with pytest.raises(MemoryError):
        pack._apply(fails)
    assert pack.pairs is pairs
    assert has_its_halves(pack)
    with pytest.raises(MemoryError):  # of the bias
        pack._apply(lambda tensor: tensor * 2 if tensor.dim() == 2 else fails())
    assert has_its_halves(pack)
    with monkeypatch.context() as full:
        full.setattr(weights, "_split_rows_native", fails)
        with pytest.raises(MemoryError):
            pack._apply(lambda tensor: tensor * 2)
    assert pack.pairs is None
    cutlass_ops.linear_avgpool_gelu_scale_max(x, pack)
    assert kernels.products.pop()[1]
    assert has_its_halves(pack)


def test_threads_of_the_first_call_make_the_halves_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, calls = weights._split_rows_native, []

    def slowly(*arguments: object) -> None:
        calls.append(arguments)
        time.sleep(0.02)
        split(*arguments)

    pack = copy.deepcopy(split_pack()[1])
    monkeypatch.setattr(weights, "_split_rows_native", slowly)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: pack.halves(pack.weight), range(8)))
    assert len(calls) == 1
    assert all(pairs is pack.pairs for pairs in found)
    assert has_its_halves(pack)


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


def test_halves_made_in_inference_mode_can_be_written_to(kernels: Kernels) -> None:
    with torch.inference_mode():
        _, pack = split_pack()
    assert not pack.pairs.is_inference()
    _, other = split_pack()
    copied = copy.deepcopy(other)
    with torch.inference_mode():
        assert has_its_halves(copied)
    assert not copied.pairs.is_inference()
    copied.load_state_dict(split_pack()[1].state_dict())
    assert has_its_halves(copied)


def test_packs_without_halves(kernels: Kernels) -> None:
    weight = torch.randn(12, 8)
    for pack in (
        cutlass_ops.pack_linear(weight, precision="ieee"),
        cutlass_ops.pack_linear(weight.double(), precision="fp16x3"),
        cutlass_ops.pack_linear(weight[:0], precision="fp16x3"),
        cutlass_ops.pack_linear(weight[:, :0], precision="fp16x3"),
    ):
        assert pack.pairs is None
        cutlass_ops.linear_gelu_softmax(torch.ones(3, pack.in_features).to(pack.weight), pack)
    assert not any(halves for _, halves in kernels.products)


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


# ---- no cache where nobody packed ----------------------------------------------------------------


@both
@pytest.mark.parametrize("requires_grad", [False, True])
def test_writes_to_data_are_seen(op: Fused, requires_grad: bool, device: str) -> None:
    """pytorch#6990, #30987: neither version nor pointer changes."""
    x, weight, bias = linear_like(20, 24, 16, device, requires_grad=requires_grad)
    for _ in range(3):
        version, pointer = weight._version, weight.data_ptr()
        y = op.call(x, weight, bias).detach()
        op.judge(y, x.detach(), weight.detach(), bias.detach())
        weight.data.mul_(-2)
        assert (weight._version, weight.data_ptr()) == (version, pointer)
        assert not torch.equal(op.call(x, weight, bias), y)


@both
def test_a_new_weight_at_the_address_of_an_old_one(op: Fused, device: str) -> None:
    """antirez/iris.c PR#28, Camelid PR#216, flashinfer PR#4069: a pointer as the key of a cache."""
    x, _, _ = linear_like(6, 24, 16, device)
    addresses = set()
    for seed in range(20):
        _, weight, bias = linear_like(6, 24, 16, device, seed=seed)
        addresses.add(weight.data_ptr())
        op.judge(op.call(x, weight, bias), x, weight, bias)
        del weight, bias
    assert len(addresses) < 20, "no address was used again, so this proves nothing"


@both
def test_swapped_storage_is_seen(op: Fused, device: str) -> None:
    """param.data = other: the same object, another storage."""
    x, weight, bias = linear_like(6, 24, 16, device)
    parameter = torch.nn.Parameter(weight)
    op.call(x, parameter, bias)
    parameter.data = torch.randn_like(weight)
    y = op.call(x, parameter, bias).detach()
    op.judge(y, x, parameter.detach(), bias)


@both
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
