"""The kernels that read at the speed of memory issue a batch of loads before they wait for one.

With one load in flight a thread they ran at 67 to 88 % of the bandwidth of a copy, and computed the
same. Only the disassembly shows it: a branch or a loop between the loads is enough.
"""

from __future__ import annotations

import re
import shutil

import pytest
from programs import ROOT, load_module

from cutlass_ops import _library

BINARY = _library.binary_path()
ARCH = "sm_90a"
# In a mangled name: threads a row, columns a thread in registers, CTAs of a cluster (or what is in
# shared memory); lanes, groups, loads, CTAs.
_SOFTMAX = re.compile(r"row_softmax\w*(?:Register|Shared)RowsILi(\d+)ELi(\d+)ELi\d+E(?:Li4E)?EE")
_GRADIENT = re.compile(r"row_softmax_gradient\w*GradientRowsILi(\d+)ELi(\d+)ELi4EEE")
_FOLD = re.compile(r"fold_rows\w*FoldRowsConfigILi\d+ELi\d+ELi(\d+)ELi\d+EEELi4E")
_ARGMAX = re.compile(r"row_argmax\w*RowArgmaxConfigILi\d+ELi4E")
# Rows in flight; of the 8 of the second, 64 registers have room for 6 before one is waited for.
_WINNER_SUMS = {re.compile(r"sum_runsILi4E"): 16, re.compile(r"gather_and_scatterILi4E"): 6}


def registers(operand: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", operand)}


def first_batch(body: list[str]) -> tuple[int, int]:
    """128-bit and 32-bit loads from global memory before the first instruction that reads one."""
    loaded: set[int] = set()
    vectors = scalars = 0
    for text in body:
        name, _, rest = text.partition(" ")
        target, _, sources = rest.partition(",")
        if not target.strip().startswith("R") or name.startswith(("ST", "RED")):
            sources = rest
        if loaded & registers(sources):
            break
        if name.startswith("LDG."):  # and not LDGSTS, whose target is in shared memory
            (first,) = registers(target)
            loaded |= set(range(first, first + (4 if ".128" in name else 1)))
            vectors += ".128" in name
            scalars += ".128" not in name
    return vectors, scalars


def largest_batch(body: list[str]) -> int:
    """128-bit loads of the batch that has most of them, wherever it is."""
    return max(first_batch(body[i:])[0] for i, text in enumerate(body) if text.startswith("LDG."))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (["LDG.E.128 R4, [R2.64]", "LDG.E.128 R8, [R2.64+0x10]", "FADD R0, R5, R9"], (2, 0)),
        (["LDG.E.128 R4, [R2.64]", "FADD R0, R7, R0", "LDG.E.128 R8, [R2.64+0x10]"], (1, 0)),
        (["LDG.E.128 R4, [R2.64]", "FSETP.GT.AND P0, PT, R4, R0, PT", "LDG.E R8, [R2.64]"], (1, 0)),
        (["LDG.E.128 R4, [R2.64]", "MOV R8, R0", "LDG.E.128 R8, [R2.64]", "STG [R2], R8"], (2, 0)),
        (["LDG.E R4, [R2.64]", "LDG.E.128 R8, [R2.64]", "FADD R0, R4, R0"], (1, 1)),
    ],
)
def test_what_is_counted(body: list[str], expected: tuple[int, int]) -> None:
    assert first_batch(body) == expected


@pytest.mark.skipif(BINARY is None, reason=f"no binary: {_library.load_error()}")
def test_loads_come_in_batches() -> None:
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        pytest.skip("cuobjdump is not installed")
    if "90a" not in _library.build_info()["architectures"]:
        pytest.skip(f"no code for {ARCH}")
    banks = load_module(ROOT / "scripts" / "register_banks.py")
    seen = 0
    for name, body in banks.kernels(banks.disassemble(cuobjdump, BINARY, ARCH)).items():
        softmax, fold = _SOFTMAX.search(name), _FOLD.search(name)
        if softmax or fold:
            vectors, scalars = first_batch([text for _, text in body])
            columns = int(softmax[2]) if softmax else 0
            assert vectors >= (columns // 4 if softmax else int(fold[1])), name
            if softmax and int(softmax[1]) > 1:  # one more at an edge, or all from any address
                assert scalars >= columns + 1, name
            seen += 1
        elif gradient := _GRADIENT.search(name):  # three operands
            vectors, _ = first_batch([text for _, text in body])
            assert vectors >= 3 * int(gradient[2]) // 4, name
            seen += 1
        elif _ARGMAX.search(name):  # 16 columns of four partial matrices
            vectors, _ = first_batch([text for _, text in body])
            assert vectors >= 16, name
            seen += 1
        for pattern, rows in _WINNER_SUMS.items():
            if pattern.search(name):
                assert largest_batch([text for _, text in body]) >= rows, name
                seen += 1
    assert seen >= 61, "12 configurations for 3 activations, 8 and 2 for 2, 3 of the fold and 2"
