"""Warnings: each text once per process, and on the line of the program that led to it."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

import torch

# PyTorch is skipped with us: it stands between a module's forward, or a traced call, and the
# program. (warnings.warn can skip by itself, but not before Python 3.12.)
_SKIPPED = tuple(
    os.path.join(os.path.dirname(file), "") for file in (__file__, str(torch.__file__))
)
_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Give a UserWarning, once per text and process, in the name of the first frame outside."""
    if text not in _warned:
        _warned.add(text)
        level = _outside(sys._getframe())
        warnings.warn(f"cutlass_ops: {text}", UserWarning, stacklevel=level)


def _outside(frame: FrameType) -> int:
    """The stacklevel, 1 for ``frame`` itself, of the first frame outside this package and torch; of
    the outermost one where there is none, as in a thread of the autograd engine."""
    level = 1
    while frame.f_code.co_filename.startswith(_SKIPPED) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    return level
