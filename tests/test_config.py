"""show_config and explain tell the truth."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import cutlass_ops
from cutlass_ops import _library, plans
from cutlass_ops.validation import SIZE_LIMIT

OPS = ("linear_gelu_softmax", "linear_avgpool_gelu_scale_max")


def test_show_config_tells_versions_and_build() -> None:
    text = cutlass_ops.show_config()
    assert torch.__version__ in text
    assert sys.version.split()[0] in text
    if _library.loaded():
        info = _library.build_info()
        assert info["cutlass"] in text
        assert info["nvcc"] in text
        assert all(arch in text for arch in info["architectures"])
        assert _library.load_error() is None
    else:
        assert str(_library.load_error()) in text
        assert _library.build_info() == {}


def test_show_config_tells_the_devices() -> None:
    text = cutlass_ops.show_config()
    if not torch.cuda.is_available():
        assert "no CUDA device is visible" in text or "built without CUDA" in text
        return
    for index in range(torch.cuda.device_count()):
        capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
        assert torch.cuda.get_device_name(index) in text
        assert capability in text
        reason = _library.unsupported_reason(torch.device("cuda", index))
        assert (reason or "native kernels run") in text
        reason = _library.fp16x3_reason(torch.device("cuda", index))
        assert ("precisions: ieee, fp16x3" if reason is None else f"not fp16x3: {reason}") in text


def test_show_config_tells_the_precision() -> None:
    with cutlass_ops.float32_precision("fp16x3"):
        assert "fp16x3 is the default" in cutlass_ops.show_config()
    assert "ieee is the default" in cutlass_ops.show_config()


def fake_gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """CUDA devices of these capabilities, in the eyes of config.py and _library.py."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def capability(device: torch.device | int) -> tuple[int, int]:
        return capabilities[getattr(device, "index", device)]

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(_library, "_driver_reason", lambda *versions: None)
    for name in ("unsupported_reason", "fp16x3_reason"):  # what they remember outlives the patch
        monkeypatch.setattr(_library, name, getattr(_library, name).__wrapped__)
    monkeypatch.setattr(
        plans, "gpu", lambda index: plans.Gpu(100 + index, 10 * capabilities[index][0])
    )


MODES_BUILT: list[tuple[list[str], tuple[int, int], str | None]] = [
    (["80", "90a"], (9, 0), None),
    (["90a+PTX"], (9, 0), None),
    (["80", "90+PTX"], (9, 0), "need 90a"),
    (["80+PTX"], (9, 0), "built for 80+PTX, and the tensor-core kernels need 90a"),
    (["80", "90a"], (8, 0), "compute capability 8.0, and the tensor-core kernels are for 9.0"),
    (["80+PTX", "90a"], (10, 0), "compute capability 10.0, and the tensor-core kernels are"),
    (["80", "90a"], (12, 0), "set CUTLASS_OPS_CUDA_ARCHS and build again"),
]


@pytest.mark.skipif(not _library.loaded(), reason="without a binary that is the reason")
@pytest.mark.parametrize(("built", "capability", "reason"), MODES_BUILT)
def test_where_fp16x3_is_native(
    built: list[str],
    capability: tuple[int, int],
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_gpus(monkeypatch, capability)
    monkeypatch.setattr(_library, "build_info", lambda: {"architectures": built})
    found = _library.fp16x3_reason(torch.device("cuda", 0))
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)
    text = cutlass_ops.show_config()
    assert ("native precisions: ieee, fp16x3" in text) == (reason is None)
    assert found is None or f"native precisions: ieee; not fp16x3: {found}" in text


@pytest.mark.skipif(not _library.loaded(), reason="plans need the binary")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("packed", [False, True])
def test_explain_in_the_mode(op: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has it; without any device, of an H200."""
    shape = (1024, 8192, 8192)
    options: dict[str, Any] = {"packed": packed, "kernel_size": 16 if "pool" in op else 1}
    monkeypatch.setattr(_library, "build_info", lambda: {"architectures": ["80", "90a"]})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    texts = [cutlass_ops.explain(op, shape, precision="fp16x3", **options)]
    with cutlass_ops.float32_precision("fp16x3"):
        texts.append(cutlass_ops.explain(op, shape, **options))
    fake_gpus(monkeypatch, (9, 0), (8, 0))
    texts.append(cutlass_ops.explain(op, shape, precision="fp16x3", device="cuda:0", **options))
    for text in texts:
        assert ": fp16x3_" in text
        assert ("split into fp16 halves when they were packed" in text) == packed
        assert "stands in" not in text
    for device, mode in (("cuda:0", "ieee"), ("cuda:1", "ieee"), ("cuda:1", "fp16x3")):
        text = cutlass_ops.explain(op, shape, precision=mode, device=device, **options)
        assert ": fp16x3_" not in text
        assert "halves" not in text
        assert ("capability 8.0" in text and "'ieee' stands in" in text) == (mode == "fp16x3")
    monkeypatch.setattr(_library, "build_info", lambda: {"architectures": ["90"]})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = cutlass_ops.explain(op, shape, precision="fp16x3", **options)
    assert "need 90a" in text
    assert ": fp16x3_" not in text


@pytest.mark.skipif(not _library.loaded(), reason="plans need the binary")
@pytest.mark.parametrize("packed", [False, True])
def test_explain_of_few_rows_in_the_mode(packed: bool) -> None:
    shape, options = (1, 8192, 8192), {"precision": "fp16x3", "packed": packed}
    assert ": skinny" in cutlass_ops.explain("linear_gelu_softmax", shape, **options)


@pytest.mark.skipif(not _library.loaded(), reason="plans need the binary")
@pytest.mark.parametrize("op", OPS)
def test_explain_of_a_pack_without_columns(op: str) -> None:
    """It has no halves, and no kernel asks for any."""
    text = cutlass_ops.explain(op, (64, 512, 0), precision="fp16x3", packed=True)
    assert "halves" not in text
    assert ": fp16x3_" not in text


@pytest.mark.parametrize("op", OPS)
def test_explain_names_the_kernel_that_the_plan_names(op: str) -> None:
    text = cutlass_ops.explain(op, (64, 512, 256))
    assert op in text
    assert all(f"={size}" in text for size in (64, 512, 256))
    if not torch.cuda.is_available():
        assert "reference would run" in text
    if _library.loaded():
        name = "gelu" if op == "linear_gelu_softmax" else "avgpool_gelu_scale_max"
        params = [] if op == "linear_gelu_softmax" else [1.0, 1.0]
        gpu = plans.gpu(0) if torch.cuda.is_available() else plans.H200
        plan = torch.ops.cutlass_ops._plan(name, params, 64, 512, 256, gpu)
        assert torch.ops.cutlass_ops._describe_plan(plan) in text


@pytest.mark.skipif(not _library.loaded(), reason="plans need the binary")
def test_explain_tells_folding_and_packing() -> None:
    op = "linear_avgpool_gelu_scale_max"
    folded = cutlass_ops.explain(op, (1024, 8192, 8192), kernel_size=16)
    packed = cutlass_ops.explain(op, (1024, 8192, 8192), kernel_size=16, packed=True)
    pooled = cutlass_ops.explain(op, (1, 8192, 8192), kernel_size=16)
    assert "fold" in folded
    assert "512" in folded
    assert "packed" in packed
    assert "fold" not in pooled


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 1, 8), (8, 8, 0), (2**20, 2**20, 1)])
@pytest.mark.parametrize("op", OPS)
def test_explain_of_odd_shapes(op: str, shape: tuple[int, int, int]) -> None:
    assert op in cutlass_ops.explain(op, shape)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("softmax", (1, 1, 1)), {}),
        (("linear_gelu_softmax", (-1, 1, 1)), {}),
        (("linear_gelu_softmax", (1, 1, 1)), {"precision": "tf32"}),
        (("linear_gelu_softmax", (1, 1, 1)), {"kernel_size": 2}),
        (("linear_avgpool_gelu_scale_max", (1, 4, 1)), {"kernel_size": 5}),
        (("linear_avgpool_gelu_scale_max", (1, 4, 1)), {"approximate": "relu"}),
    ],
)
def test_explain_refuses_nonsense(arguments: tuple, options: dict) -> None:
    with pytest.raises(ValueError, match="explain"):
        cutlass_ops.explain(*arguments, **options)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("shape", "error", "value"),
    [
        ((1, 2), ValueError, r"\(1, 2\)"),
        ((1, 2, 3, 4), ValueError, r"\(1, 2, 3, 4\)"),
        (3, TypeError, "3"),
        ("123", TypeError, "'123'"),
        ((1.5, 2, 3), TypeError, "1.5"),
        ((True, 2, 3), TypeError, "True"),
        ((1, -2, 3), ValueError, "-2"),
        ((2**31, 2, 3), ValueError, str(2**31)),
        ((1, 2, SIZE_LIMIT + 1), ValueError, str(SIZE_LIMIT + 1)),
    ],
)
def test_explain_refuses_what_is_no_shape(
    op: str, shape: Any, error: type[Exception], value: str
) -> None:
    """These came out as errors of tuple unpacking and of the dispatcher."""
    with pytest.raises(error, match=f"explain: .*{value}"):
        cutlass_ops.explain(op, shape)


@pytest.mark.parametrize("op", OPS)
def test_explain_of_the_largest_sizes(op: str) -> None:
    for shape in ((SIZE_LIMIT, 1, 1), (1, SIZE_LIMIT, 1), (1, 1, SIZE_LIMIT)):
        assert str(SIZE_LIMIT) in cutlass_ops.explain(op, shape)
    assert "M=2" in cutlass_ops.explain(op, torch.Size([2, 3, 4]))
