"""The precision modes: a default, a context manager, an argument, and strictness."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fused import BOTH, Fused, linear_like, pool_max_op, same_bits, softmax_op
from programs import run_python
from torch import Tensor

import cutlass_ops
from cutlass_ops import _library, precision, warn

both = pytest.mark.parametrize("op", BOTH, ids=repr)


@pytest.fixture
def lacking(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device on which fp16x3 falls back, were it a Hopper GPU."""
    if precision.reason_not_native("fp16x3", torch.device(device, 0)) is None:
        monkeypatch.setattr(_library, "fp16x3_reason", lambda device: f"not on {device} today")
    return device


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16x3 is native, as far as Python can tell; the CPU computes as ever."""
    monkeypatch.setattr(_library, "fp16x3_reason", lambda device: None)


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
def test_falling_back_warns_once(op: Fused, lacking: str) -> None:
    mode = "fp16x3"
    operands = linear_like(4, 8, 5, lacking)
    plain = op.call(*operands)
    with cutlass_ops.float32_precision(mode), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [op.call(*operands) for _ in range(3)]
    messages = [str(w.message) for w in caught if mode in str(w.message)]
    assert len(messages) == 1
    assert "ieee" in messages[0]
    assert all(same_bits(y, plain) for y in results)


@both
def test_strict_raises_where_the_mode_is_not_native(op: Fused, lacking: str) -> None:
    mode = "fp16x3"
    operands = linear_like(4, 8, 5, lacking)
    with (
        cutlass_ops.float32_precision(mode, strict=True),
        pytest.raises(RuntimeError, match=f"{op.op._schema.name.split('::')[1]}.*{mode}"),
    ):
        op.call(*operands)
    with cutlass_ops.float32_precision("ieee", strict=True):
        op.call(*operands)
    op.call(*operands)


@both
def test_precision_is_part_of_the_graph(op: Fused, lacking: str) -> None:
    """The context manager traces, and changing the mode between calls is not missed: a mode without
    a kernel raises, by Dynamo's own kind of RuntimeError, or falls back with the warning."""
    torch._dynamo.reset()
    mode = "fp16x3"
    operands = linear_like(6, 16, 8, lacking)

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
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("how", ["argument", "default", "strict"])
def test_a_native_mode_stands_in_the_graph(op: Fused, grad: bool, how: str) -> None:
    """Without a break, and without a word."""
    torch._dynamo.reset()
    operands = linear_like(6, 16, 8, "cpu", requires_grad=grad)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    head = getattr(cutlass_ops, op.op._schema.name.split("::")[1])
    options = {} if len(op.options) < 3 else {"kernel_size": op.options[0]}

    def function(*operands: Tensor) -> Tensor:
        if how == "argument":
            return head(*operands, precision="fp16x3", **options)
        return op.call(*operands)

    mode = "ieee" if how == "argument" else "fp16x3"
    with (
        cutlass_ops.float32_precision(mode, strict=how == "strict"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message=".*fp16x3")
        y = torch.compile(function, fullgraph=True, backend=backend)(*operands)
        assert torch.equal(y, function(*operands))
    assert len(graphs) == 1
    assert "fp16x3" in graphs[0]


LINEAR_OPS: dict[str, tuple[object, ...]] = {
    "linear": (),
    "linear_epilogue": ("gelu", []),
    "linear_gelu_softmax": ("none",),
    "linear_gelu_softmax_training": ("none",),
    "linear_avgpool_gelu_scale_max": (3, 1.0, "none"),
}


@pytest.mark.parametrize("name", LINEAR_OPS)
def test_registered_ops_do_not_fall_back(name: str, lacking: str) -> None:
    """They run in the mode that they are called in, or raise."""
    op = getattr(torch.ops.cutlass_ops, name)
    arguments = *linear_like(4, 8, 5, lacking), *LINEAR_OPS[name]
    with pytest.raises(RuntimeError, match=rf"^{name}: precision 'fp16x3' has no native kernel"):
        op(*arguments, "fp16x3")
    with pytest.raises(ValueError, match=rf"^{name}: precision must be one of .* got 'tf32'"):
        op(*arguments, "tf32")
    op(*arguments, "ieee")


@pytest.mark.usefixtures("everywhere")
def test_gradients_of_linear_epilogue_in_the_mode() -> None:
    operands = linear_like(4, 8, 5, "cpu", requires_grad=True)
    grads = []
    for precision_arguments in ((), ("ieee",), ("fp16x3",)):
        y = torch.ops.cutlass_ops.linear_epilogue(*operands, "gelu", [], *precision_arguments)
        grads.append(torch.autograd.grad(y.square().sum(), operands))
    for plain, *others in zip(*grads, strict=True):
        assert all(torch.equal(plain, other) for other in others)


@pytest.mark.parametrize("op", [softmax_op(), pool_max_op(4, 1.5)], ids=repr)
@pytest.mark.filterwarnings("ignore:.*native")
def test_a_product_for_the_tensor_cores(op: Fused, device: str) -> None:
    """Large enough for them, if the device has them: as accurate as float32, with gradients."""
    operands = linear_like(256, 4096, 2048, device, requires_grad=True)
    plain = [t.detach() for t in operands]
    kernel_size = 1 if "softmax" in op.label else op.options[0]
    with cutlass_ops.float32_precision("fp16x3"):
        y = op.call(*operands)
        found = torch.autograd.grad(y.square().sum(), operands)
        pack = cutlass_ops.pack_linear(*plain[1:], kernel_size=kernel_size)
        packed = op.call(plain[0], pack, None)
    op.judge(y.detach(), *plain, strict=True)
    op.judge(packed, *plain, strict=True)
    expected = torch.autograd.grad(op.call(*operands).square().sum(), operands)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 2e-6 * other.norm()


def test_one_warning_for_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of GPU in one machine have each their own."""
    reasons = iter(["too old", "too old", "too new"])
    monkeypatch.setattr(_library, "fp16x3_reason", lambda device: next(reasons))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert precision.effective("op", "fp16x3", torch.device("cpu")) == "ieee"
    assert ["too old" in str(warning.message) for warning in caught] == [True, False]


@both
def test_float64_has_one_arithmetic(op: Fused, device: str) -> None:
    operands = [t.double() for t in linear_like(4, 8, 5, device)]
    plain = op.call(*operands)
    with cutlass_ops.float32_precision("fp16x3", strict=True):
        assert torch.equal(op.call(*operands), plain)


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
