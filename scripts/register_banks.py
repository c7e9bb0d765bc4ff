"""Counts how long the FFMAs in the main loop of each GEMM kernel wait for register banks.

    python scripts/register_banks.py [BINARY] [--arch sm_90a]

The rule, fitted to 32 register-only loops on an H200 (correlation of predicted and measured cycles
0.97): the registers of a thread form two banks, even and odd, of one read each a cycle; an operand
marked .reuse is kept per operand slot and bank, and read from there. So an FFMA takes as many
cycles as the fuller bank has reads of it. Needs cuobjdump of the CUDA toolkit.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Instruction = tuple[int, str]  # address, text
# In a mangled name: M x N of a portable SIMT tile, rows x vector of a skinny one, whether the
# transposing mainloop loads vectors.
_TILE = re.compile(r"(Simt|Skinny)TileILi(\d+)ELi(\d+)|(Transposing)TileELb(\d)")

_TRANSPOSING = {"0": "transposing, scalars", "1": "transposing, vectors"}


def kernels(listing: str) -> dict[str, list[Instruction]]:
    """Instructions of every function in the output of ``cuobjdump -sass``."""
    found: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in listing.splitlines():
        if function := re.match(r"\s*Function : (\S+)", line):
            body = found.setdefault(function[1], [])
        elif instruction := re.match(r"\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", line):
            body.append((int(instruction[1], 16), re.sub(r"^@!?U?P\w+\s+", "", instruction[2])))
    return found


def main_loop(body: list[Instruction]) -> list[str]:
    """The code between a backward branch and its target that holds the most FFMAs."""
    loops = [[]]
    for address, text in body:
        branch = re.search(r"^BRA\S* .*?(0x[0-9a-f]+)", text)
        if branch and int(branch[1], 16) <= address:
            start = int(branch[1], 16)
            loops.append([text for at, text in body if start <= at <= address])
    return max(loops, key=lambda loop: sum(text.startswith("FFMA ") for text in loop))


def cycles(loop: list[str]) -> Iterator[int]:
    """Cycles that each FFMA takes to read its operands."""
    kept: dict[tuple[int, int], int] = {}  # (operand slot, bank): register
    for text in loop:
        if not text.startswith("FFMA "):
            continue
        target, *sources = text[5:].split(",")
        reads = set()
        for slot, source in enumerate(sources):
            operand = re.match(r"\s*-?R(\d+)(\.reuse)?", source)
            if operand is None:
                continue
            register = int(operand[1])
            place = slot, register % 2
            if kept.get(place) != register:
                reads.add(register)
                kept.pop(place, None)
            if operand[2]:
                kept[place] = register
        written = int(target.strip().removeprefix("R"))
        kept = {place: register for place, register in kept.items() if register != written}
        odd = sum(register % 2 for register in reads)
        yield max(1, odd, len(reads) - odd)


class Count(NamedTuple):
    """The main loop of one kernel; cycles are those of the issue slot."""

    tile: str
    instructions: int
    ffmas: int
    waits: int

    @property
    def share(self) -> float:
        """FFMAs in the cycles of the loop."""
        return self.ffmas / (self.instructions + self.waits)


def count(listing: str) -> list[Count]:
    """One entry for each GEMM kernel in the output of ``cuobjdump -sass``, sorted."""
    counts = []
    for name, body in kernels(listing).items():
        tile = _TILE.search(name)
        if "_gemm" in name and tile:
            loop = main_loop(body)
            taken = list(cycles(loop))
            label = f"{tile[1].lower()} {tile[2]}x{tile[3]}" if tile[1] else _TRANSPOSING[tile[5]]
            counts.append(Count(label, len(loop), len(taken), sum(taken) - len(taken)))
    return sorted(counts)


def disassemble(cuobjdump: str, binary: Path, arch: str) -> str:
    """SASS of the code for one architecture."""
    command = [cuobjdump, "-sass", "-arch", arch, str(binary)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    binary = Path(__file__).parent.parent / "cutlass_ops" / "_C.abi3.so"
    parser.add_argument("binary", nargs="?", type=Path, default=binary)
    parser.add_argument("--arch", default="sm_90a")
    options = parser.parse_args(arguments)
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        parser.error("cuobjdump is not on PATH; it comes with the CUDA toolkit")
    counts = count(disassemble(cuobjdump, options.binary, options.arch))
    rows = [(*one, one.share) for one in counts]
    print("tile            instructions  FFMAs  waits  FFMA share of the cycles")
    for tile, instructions, ffmas, waits, share in rows:
        print(f"{tile:14s}  {instructions:12d}  {ffmas:5d}  {waits:5d}  {share:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
