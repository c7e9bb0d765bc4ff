"""The halves of a pack for fp16x3: made of what it folded, and anew by whatever fills or moves the
pack."""

from __future__ import annotations

import copy
import io
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_kernels import Kernels
from packs import has_its_halves, split_pack
from torch import Tensor

import cutlass_ops
from cutlass_ops import _library, warn, weights


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
