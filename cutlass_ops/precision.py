"""The float32 arithmetic of the linear part: a default, a context manager, a resolution rule.

``"ieee"`` multiplies and adds in float32 (never TF32, whatever PyTorch's flags say). ``"fp16x3"``
is for tensor cores; no kernel of this version has it natively, so it falls back to ``"ieee"`` with
one warning, or raises where ``strict`` was asked for.

The state is a module global, shared by all threads: a ContextVar would break the graph under
``torch.compile(fullgraph=True)``, whereas globals are traced and guarded.
"""

from __future__ import annotations

from types import TracebackType

import torch

from .warn import warn_once

MODES = ("ieee", "fp16x3")
NATIVE_MODES = ("ieee",)

_mode: str = "ieee"
_strict: bool = False


def check_mode(op: str, mode: str) -> None:
    """Raise ValueError, naming ``op``, unless ``mode`` is a known precision mode."""
    if mode not in MODES:
        raise ValueError(f"{op}: precision must be one of {MODES}, got {mode!r}")


def set_float32_precision(mode: str, strict: bool = False) -> None:
    """Set the mode that ``precision=None`` means, ``"ieee"`` at first.

    Args:
        mode: ``"ieee"`` or ``"fp16x3"``; anything else raises ValueError.
        strict: from now on a call whose mode is not native raises RuntimeError, where otherwise
            it falls back to ``"ieee"`` with one warning. Holds for modes passed by argument too.
    """
    global _mode, _strict
    check_mode("set_float32_precision", mode)
    _mode = mode
    _strict = bool(strict)


def get_float32_precision() -> str:
    """The mode that ``precision=None`` means now."""
    return _mode


class float32_precision:  # noqa: N801, a context manager is called like a function
    """Set the default precision inside a ``with`` block and restore the former one after it.

    Takes what :func:`set_float32_precision` takes. May be entered again, also while it is active.
    """

    def __init__(self, mode: str, strict: bool = False) -> None:
        check_mode("float32_precision", mode)
        self.mode = mode
        self.strict = bool(strict)
        self._former: list[tuple[str, bool]] = []

    def __enter__(self) -> float32_precision:
        self._former.append((_mode, _strict))
        set_float32_precision(self.mode, self.strict)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_float32_precision(*self._former.pop())


def requested(op: str, precision: str | None) -> str:
    """The mode a call asks for: its argument, checked, or the default."""
    if precision is None:
        return _mode
    check_mode(op, precision)
    return precision


def check_native(op: str, mode: str) -> None:
    """What the registered ops demand of their ``precision``: a mode that runs as it is called."""
    check_mode(op, mode)
    if mode not in NATIVE_MODES:
        raise RuntimeError(f"{op}: precision {mode!r} has no native kernel in this build")


def effective(op: str, mode: str) -> str:
    """The mode a float32 call that asks for ``mode`` runs in.

    Raises RuntimeError where that is another one and the precision was set to be strict.
    """
    if mode in NATIVE_MODES:
        return mode
    if _strict:
        raise RuntimeError(
            f"{op}: precision {mode!r} has no native kernel in this build, and "
            f"set_float32_precision(..., strict=True) forbids the fallback to 'ieee'"
        )
    _tell_fallback(mode)
    return "ieee"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _tell_fallback(mode: str) -> None:
    """One warning per mode and process; under torch.compile this runs while tracing."""
    warn_once(
        f"precision {mode!r} has no native kernel in this build; "
        f"running in 'ieee' (float32 multiply-add) instead"
    )
