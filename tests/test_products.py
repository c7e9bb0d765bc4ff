"""The products of backward, a @ b and a.T @ b: the op, the way to the kernels, and the kernels."""

from __future__ import annotations

import pytest
import torch
from fake_kernels import Kernels
from fused import mode_on, run_opcheck, same_bits
from heads import plain_head
from native import OPS, guarded, guards_are_intact, needs_binary, require_kernels
from operands import Linear
from oracle import check, full_float32
from torch import Tensor

import cutlass_ops
from cutlass_ops import plans, products

either = pytest.mark.parametrize("transposed", [False, True])
PLAIN = plain_head(lambda z: z)


def operands(
    m: int, n: int, k: int, transposed: bool, device: str, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    shape = (k, m) if transposed else (m, k)
    a, b = (torch.randn(s, generator=generator, device=device) for s in (shape, (k, n)))
    return a, b


def judge(y: Tensor, a: Tensor, transposed: bool, b: Tensor) -> None:
    """As any linear layer of this size."""
    check(y, PLAIN, Linear((a.t() if transposed else a).contiguous(), b.t().contiguous()))


@either
@pytest.mark.parametrize("shape", [(5, 7, 3), (0, 4, 3), (4, 0, 3), (4, 3, 0)], ids=str)
def test_product(shape: tuple[int, int, int], transposed: bool, device: str) -> None:
    a, b = operands(*shape, transposed, device)
    args = (a, transposed, b, mode_on(device))
    y = OPS.product(*args)
    assert y.shape == shape[:2]
    judge(y, a, transposed, b)
    run_opcheck(OPS.product.default, args)


@either
def test_float64_and_other_dtypes(transposed: bool, device: str) -> None:
    a, b = (t.double() for t in operands(5, 7, 3, transposed, device))
    y = OPS.product(a, transposed, b, "ieee")
    torch.testing.assert_close(y, (a.t() if transposed else a) @ b)
    with pytest.raises(TypeError, match="float16"):
        OPS.product(a.half(), transposed, b.half(), "ieee")


def test_operands_that_do_not_fit(device: str) -> None:
    a, b = torch.ones(3, 4, device=device), torch.ones(4, 2, device=device)
    for wrong in ((a, True, b), (a, False, b.t()), (a[None], False, b), (a, False, b[:, 0])):
        with pytest.raises(ValueError, match="product: a"):
            OPS.product(*wrong, "ieee")
        meta = (t.to("meta") if isinstance(t, Tensor) else t for t in wrong)
        with pytest.raises(RuntimeError, match="a is"):
            OPS.product(*meta, "ieee")
    with pytest.raises(ValueError, match="precision"):
        OPS.product(a, False, b, "nonsense")


# Whole tiles; ragged in every direction; k shorter than two blocks, and in many shares; more tiles
# than CTAs.
SHAPES = (
    (128, 128, 32),
    (132, 260, 68),
    (128, 132, 1000),
    (300, 516, 2052),
    (2304, 1152, 36),
    (1024, 1024, 1024),
)


@needs_binary
@either
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_our_own_mainloop(shape: tuple[int, int, int], transposed: bool, gpu: str) -> None:
    """Dense, in longer rows, and with k or m that is no multiple of four where it may be."""
    require_hopper(gpu)
    m, n, k = shape
    sizes = {(m, n, k), (m, n, k + 1) if transposed else (m + 1, n, k)}
    for size in sizes:
        a, b = operands(*size, transposed, gpu)
        padded = [torch.cat((t, torch.full_like(t[:, :4], torch.nan)), 1)[:, :-4] for t in (a, b)]
        results = [run_native(*pair, transposed) for pair in ((a, b), padded)]
        judge(results[0], a, transposed, b)
        assert same_bits(*results)


def require_hopper(gpu: str) -> None:
    require_kernels(gpu)
    if plans.gpu(0).capability != 90:
        pytest.skip("the mainloop is Hopper's")


def run_native(a: Tensor, b: Tensor, transposed: bool) -> Tensor:
    elements = OPS._product_memory(a, transposed, b)
    assert elements > 0
    scratch, memory = guarded((elements,), "cuda")
    around, out = guarded((a.shape[1] if transposed else a.shape[0], b.shape[1]), "cuda")
    OPS._product(a, transposed, b, memory, out)
    assert guards_are_intact(scratch)
    assert guards_are_intact(around)
    return out.clone()


@needs_binary
@either
def test_what_the_mainloop_does_not_take(transposed: bool, gpu: str) -> None:
    """Smaller than a tile, not in fours, not aligned: cuBLAS takes it."""
    require_kernels(gpu)
    for shape in ((127, 128, 32), (128, 124, 32), (128, 128, 31), (128, 130, 32)):
        a, b = operands(*shape, transposed, gpu)
        assert OPS._product_memory(a, transposed, b) == 0
        with pytest.raises(RuntimeError, match="product"):
            OPS._product(a, transposed, b, a.new_empty(10**7), a.new_empty(shape[:2]))
    a, b = operands(128, 128, 32, transposed, gpu)
    moved = torch.cat((a.view(-1)[:1], a.view(-1)))[1:].view_as(a)
    assert OPS._product_memory(moved, transposed, b) == 0


@either
@pytest.mark.parametrize("mode", cutlass_ops.precision.MODES)
def test_large_products(mode: str, transposed: bool, gpu: str) -> None:
    require_hopper(gpu)
    a, b = operands(512, 2048, 4096, transposed, gpu)
    y = OPS.product(a, transposed, b, mode)
    judge(y, a, transposed, b)
    assert same_bits(y, OPS.product(a, transposed, b, mode))


@needs_binary
@pytest.mark.parametrize(("most", "slices"), [(2**23, 1), (2**10, 3)])
def test_slices_of_a_transposed_operand_on_tensor_cores(
    most: int,
    slices: int,
    fp16x3_gpu: str,
    plans_by_cost: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last one ragged; in rows that are longer than they need be, too."""
    ran, run = [], products._linear_epilogue_native
    monkeypatch.setattr(products, "_MOST_HALVES", most)
    monkeypatch.setattr(
        products, "_linear_epilogue_native", lambda *args: ran.append(args) or run(*args)
    )
    a, b = operands(4200, 1024, 1024, True, fp16x3_gpu)
    longer = torch.cat((a, torch.full_like(a[:, :4], torch.nan)), 1)[:, :-4]
    y = OPS.product(a, True, b, "fp16x3")
    judge(y, a, True, b)
    assert len(ran) == slices
    for again in (a, longer):
        assert same_bits(y, OPS.product(again, True, b, "fp16x3"))


@pytest.mark.parametrize("mode", cutlass_ops.precision.MODES)
def test_large_products_do_not_use_tf32(mode: str, gpu: str) -> None:
    """Whatever PyTorch's flag says: it is for cuBLAS."""
    require_hopper(gpu)
    a, b = operands(512, 2048, 4096, False, gpu)
    expected = OPS.product(a, False, b, mode)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert same_bits(OPS.product(a, False, b, mode), expected)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@needs_binary
@pytest.mark.sanitizer
@either
def test_small_products(transposed: bool, gpu: str) -> None:
    require_hopper(gpu)
    a, b = operands(132, 260, 100, transposed, gpu)
    with full_float32():
        judge(run_native(a, b, transposed), a, transposed, b)


@either
@pytest.mark.parametrize("mode", cutlass_ops.precision.MODES)
@pytest.mark.parametrize("small", [False, True])
def test_the_way_to_the_kernels(
    small: bool, mode: str, transposed: bool, kernels: Kernels, plans_by_cost: None
) -> None:
    m, n, k = (64, 64, 64) if small else (512, 2048, 2112)
    a, b = operands(m, n, k, transposed, "cpu")
    y = products.cuda_product(a, transposed, b, mode)
    torch.testing.assert_close(y, (a.t() if transposed else a) @ b, rtol=1e-3, atol=1e-3)
    halves = ["linear_epilogue"]
    assert kernels.ran == ([] if small else ["product"] if mode == "ieee" else halves)


def test_slices_of_a_transposed_operand(
    kernels: Kernels, plans_by_cost: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their halves are made for some rows at a time, those of the other operand once."""
    monkeypatch.setattr(products, "_MOST_HALVES", 2**10)
    a, b = operands(4200, 1024, 1024, True, "cpu")
    y = products.cuda_product(a, True, b, "fp16x3")
    torch.testing.assert_close(y, a.t() @ b, rtol=1e-3, atol=1e-3)
    assert kernels.ran == ["split_rows", *3 * ["linear_epilogue"]]
    kernels.ran.clear()
    products.cuda_product(a.t().contiguous(), False, b, "fp16x3")
    assert kernels.ran == ["linear_epilogue"]
    kernels.ran.clear()
    monkeypatch.setattr(products, "_MOST_MEMORY", 2**20)  # less than the halves of b alone
    products.cuda_product(a, True, b, "fp16x3")
    assert kernels.ran == ["product"]
