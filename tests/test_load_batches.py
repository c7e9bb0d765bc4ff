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
# In a mangled name: threads, columns a thread, CTAs of a cluster; lanes, groups, loads, CTAs.
_SOFTMAX = re.compile(r"row_softmax\w*RegisterRowsILi\d+ELi(\d+)ELi\d+EEELi4E")
_FOLD = re.compile(r"fold_rows\w*FoldRowsConfigILi\d+ELi\d+ELi(\d+)ELi\d+EEELi4E")


def registers(operand: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", operand)}


def first_batch(body: list[str]) -> int:
    """128-bit loads from global memory before the first instruction that reads one of them."""
    loaded: set[int] = set()
    count = 0
    for text in body:
        name, _, rest = text.partition(" ")
        target, _, sources = rest.partition(",")
        if not target.strip().startswith("R") or name.startswith(("ST", "RED")):
            sources = rest
        if loaded & registers(sources):
            break
        if name.startswith("LDG") and ".128" in name:
            (first,) = registers(target)
            loaded |= set(range(first, first + 4))
            count += 1
    return count


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (["LDG.E.128 R4, [R2.64]", "LDG.E.128 R8, [R2.64+0x10]", "FADD R0, R5, R9"], 2),
        (["LDG.E.128 R4, [R2.64]", "FADD R0, R7, R0", "LDG.E.128 R8, [R2.64+0x10]"], 1),
        (["LDG.E.128 R4, [R2.64]", "FSETP.GT.AND P0, PT, R4, R0, PT", "LDG.E.128 R8, [R2.64]"], 1),
        (["LDG.E.128 R4, [R2.64]", "MOV R8, R0", "LDG.E.128 R8, [R2.64]", "STG [R2.64], R8"], 2),
        (["LDG.E R4, [R2.64]", "FADD R0, R4, R0"], 0),
    ],
)
def test_what_is_counted(body: list[str], expected: int) -> None:
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
            wanted = int(softmax[1]) // 4 if softmax else int(fold[1])
            assert first_batch([text for _, text in body]) >= wanted, name
            seen += 1
    assert seen >= 33, "10 configurations for 3 activations, and 3 of the fold"
