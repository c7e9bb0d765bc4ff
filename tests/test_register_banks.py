"""The count of FFMAs that wait for register banks."""

from __future__ import annotations

from types import ModuleType

import pytest
from programs import ROOT, load_module


@pytest.fixture(scope="module")
def banks() -> ModuleType:
    return load_module(ROOT / "scripts" / "register_banks.py")


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (["FFMA R0, R1, R2, R0"], [2]),  # 0 and 2 share a bank
        (["FFMA R0, R1, R3, R0"], [2]),
        (["FFMA R1, R3, R5, R1"], [3]),
        (["FFMA R0, R1, R1, R0"], [1]),  # one register, read once
        (["FFMA R4, R2.reuse, R3, R4", "FFMA R6, R2, R5, R6"], [2, 1]),
        (["FFMA R4, R2.reuse, R3, R4", "LDS.128 R8, [R0]", "FFMA R6, R2, R5, R6"], [2, 1]),
        (["FFMA R4, R2, R3, R4", "FFMA R6, R2, R5, R6"], [2, 2]),  # not marked
        (["FFMA R4, R2.reuse, R3, R4", "FFMA R6, R5, R2, R6"], [2, 2]),  # another slot
        # An odd register in the same slot does not drive out an even one.
        (["FFMA R7, R2.reuse, R0, R7", "FFMA R9, R3, R0, R9", "FFMA R4, R2, R1, R4"], [2, 2, 1]),
        # One of the same parity does: there is one place for each.
        (
            ["FFMA R7, R2.reuse, R0, R7", "FFMA R9, R4.reuse, R0, R9", "FFMA R5, R2, R0, R5"],
            [2] * 3,
        ),
        (["FFMA R2, R2.reuse, R1, R5", "FFMA R6, R2, R5, R6"], [2, 2]),  # written meanwhile
    ],
)
def test_cycles(loop: list[str], expected: list[int], banks: ModuleType) -> None:
    assert list(banks.cycles(loop)) == expected


def test_the_loop_is_the_one_with_the_ffmas(banks: ModuleType) -> None:
    listing = """
        Function : _simt_gemm_SimtTileILi128ELi256E
        /*0000*/                   FFMA R0, R1, R3, R0 ;   /* 0x00 */
        /*0010*/                   LDS R4, [R0] ;          /* 0x00 */
        /*0020*/              @!P0 BRA 0x10 ;              /* 0x00 */
        /*0030*/                   FFMA R0, R1, R3, R0 ;   /* 0x00 */
        /*0040*/                   FFMA R2, R1, R0, R2 ;   /* 0x00 */
        /*0050*/              @P0  BRA 0x30 ;              /* 0x00 */
        /*0060*/                   EXIT ;                  /* 0x00 */
    """
    assert banks.count(listing) == [("simt 128x256", 3, 2, 2)]
