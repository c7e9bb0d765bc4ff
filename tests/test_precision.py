"""The precision modes: a default, a context manager, an argument, and strictness."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fused import BOTH, Fused, linear_like, same_bits
from programs import run_python
from torch import Tensor

import cutlass_ops
from cutlass_ops import precision, warn

both = pytest.mark.parametrize("op", BOTH, ids=repr)
NOT_NATIVE = [mode for mode in precision.MODES if mode not in precision.NATIVE_MODES]


@pytest.fixture(autouse=True)
def _default_is_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(warn, "_warned", set())
    yield
    cutlass_ops.set_float32_precision("ieee")


def test_the_default_is_ieee() -> None:
    assert cutlass_ops.get_float32_precision() == "ieee"
    assert precision.MODES[0] == "ieee"
    assert "fp16x3" in precision.MODES


def test_setting_and_nesting() -> None:
    cutlass_ops.set_float32_precision("fp16x3")
    assert cutlass_ops.get_float32_precision() == "fp16x3"
    with cutlass_ops.float32_precision("ieee"):
        assert cutlass_ops.get_float32_precision() == "ieee"
        with cutlass_ops.float32_precision("fp16x3"):
            assert cutlass_ops.get_float32_precision() == "fp16x3"
        assert cutlass_ops.get_float32_precision() == "ieee"
    assert cutlass_ops.get_float32_precision() == "fp16x3"


def test_an_exception_restores_the_mode() -> None:
    with pytest.raises(KeyError), cutlass_ops.float32_precision("fp16x3", strict=True):
        raise KeyError
    assert cutlass_ops.get_float32_precision() == "ieee"


def test_one_context_object_entered_twice() -> None:
    context = cutlass_ops.float32_precision("fp16x3")
    with context, context:
        assert cutlass_ops.get_float32_precision() == "fp16x3"
    assert cutlass_ops.get_float32_precision() == "ieee"


@pytest.mark.parametrize("mode", ["tf32", "half", "IEEE", None, 3])
def test_unknown_modes(mode: object) -> None:
    with pytest.raises(ValueError, match=str(mode)):
        cutlass_ops.set_float32_precision(mode)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=str(mode)):
        cutlass_ops.float32_precision(mode)  # type: ignore[arg-type]
    assert cutlass_ops.get_float32_precision() == "ieee"


def test_other_threads_see_the_mode() -> None:
    seen = []
    with cutlass_ops.float32_precision("fp16x3"):
        thread = threading.Thread(target=lambda: seen.append(cutlass_ops.get_float32_precision()))
        thread.start()
        thread.join()
    assert seen == ["fp16x3"]


@both
@pytest.mark.filterwarnings("ignore:.*native")
@pytest.mark.parametrize("how", ["argument", "context", "default"])
def test_results_in_every_mode_are_within_the_bound(op: Fused, how: str, device: str) -> None:
    """A mode is native or falls back; in either case it owes the accuracy of float32."""
    x, weight, bias = linear_like(70, 256, 300, device)
    for mode in precision.MODES:
        if how == "argument":
            function = getattr(cutlass_ops, op.op._schema.name.split("::")[1])
            options = {"precision": mode}
            if len(op.options) > 2:
                options |= {"kernel_size": op.options[0], "scale": op.options[1]}
            y = function(x, weight, bias, **options)
        elif how == "context":
            with cutlass_ops.float32_precision(mode):
                y = op.call(x, weight, bias)
        else:
            cutlass_ops.set_float32_precision(mode)
            y = op.call(x, weight, bias)
        op.judge(y, x, weight, bias, strict=True)


@both
@pytest.mark.parametrize("mode", NOT_NATIVE)
def test_falling_back_warns_once(op: Fused, mode: str, device: str) -> None:
    operands = linear_like(4, 8, 5, device)
    plain = op.call(*operands)
    with cutlass_ops.float32_precision(mode), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [op.call(*operands) for _ in range(3)]
    messages = [str(w.message) for w in caught if mode in str(w.message)]
    assert len(messages) == 1
    assert "ieee" in messages[0]
    assert all(same_bits(y, plain) for y in results)


@both
@pytest.mark.parametrize("mode", NOT_NATIVE)
def test_strict_raises_where_the_mode_is_not_native(op: Fused, mode: str, device: str) -> None:
    operands = linear_like(4, 8, 5, device)
    with (
        cutlass_ops.float32_precision(mode, strict=True),
        pytest.raises(RuntimeError, match=f"{op.op._schema.name.split('::')[1]}.*{mode}"),
    ):
        op.call(*operands)
    with cutlass_ops.float32_precision("ieee", strict=True):
        op.call(*operands)
    op.call(*operands)


@both
@pytest.mark.parametrize("mode", NOT_NATIVE)
def test_precision_is_part_of_the_graph(op: Fused, mode: str, device: str) -> None:
    """The context manager traces, and changing the mode between calls is not missed: a mode without
    a kernel raises, by Dynamo's own kind of RuntimeError, or falls back with the warning."""
    torch._dynamo.reset()
    operands = linear_like(6, 16, 8, device)

    def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    def function(*operands: Tensor) -> Tensor:
        with cutlass_ops.float32_precision("ieee", strict=True):
            return op.call(*operands)

    op.judge(compiled(function)(*operands), *operands)
    assert cutlass_ops.get_float32_precision() == "ieee"
    call = compiled(op.call)
    expected = call(*operands)
    with cutlass_ops.float32_precision(mode, strict=True):
        for variant, kind in ((op.call, RuntimeError), (call, torch._dynamo.exc.Unsupported)):
            with pytest.raises(RuntimeError, match=f"{mode}.*no native kernel") as raised:
                variant(*operands)
            assert issubclass(raised.type, kind)
    with (
        cutlass_ops.float32_precision(mode),
        pytest.warns(UserWarning, match=f"{mode}.*no native kernel"),
    ):
        y = call(*operands)
    assert torch.equal(y, expected)
    assert torch.equal(call(*operands), expected)


@both
def test_float64_has_one_arithmetic(op: Fused, device: str) -> None:
    operands = [t.double() for t in linear_like(4, 8, 5, device)]
    with cutlass_ops.float32_precision("fp16x3", strict=True):
        assert torch.equal(op.call(*operands), op.call(*operands))


LEAKS = """
import cutlass_ops

def test_none():
    cutlass_ops.get_float32_precision()

def test_mode():
    cutlass_ops.set_float32_precision("fp16x3")

def test_strict():
    cutlass_ops.set_float32_precision("ieee", strict=True)
"""


def test_the_suite_notices_a_precision_left_changed(tmp_path: Path) -> None:
    """The fixture of conftest.py that every test goes through."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    tests = f"pythonpath={Path(__file__).parent}"  # for what conftest.py imports
    options = ("-q", "-p", "no:cacheprovider", "-o", tests)
    done = run_python("-m", "pytest", *options, ".", cwd=tmp_path)
    assert "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_leaks.py::test_mode" in done.stdout
    assert "ERROR test_leaks.py::test_strict" in done.stdout


def test_a_pack_keeps_the_mode_it_was_made_in(device: str) -> None:
    x, weight, bias = linear_like(4, 8, 5, device)
    pack = cutlass_ops.pack_linear(weight, bias, precision="ieee")
    with cutlass_ops.float32_precision("fp16x3", strict=True):
        y = cutlass_ops.linear_gelu_softmax(x, pack)
    assert pack.precision == "ieee"
    assert same_bits(y, cutlass_ops.linear_gelu_softmax(x, weight, bias))
