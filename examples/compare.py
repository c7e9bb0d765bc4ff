"""What the examples share: two models with the same parameters, their errors and their times."""

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn


def pick_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def median_seconds(
    calls: Sequence[Callable[[], Any]], device: torch.device, rounds: int = 20
) -> list[float]:
    """Median time of each call, the device's work included. They take turns, so that a disturbance
    meets all of them; three rounds to warm up are not counted."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 3):
        for call, measured in zip(calls, times, strict=True):
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:
                measured.append(perf_counter() - start)
    return [statistics.median(measured) for measured in times]


def relative_error(result: Tensor, exact: Tensor) -> float:
    """||result - exact|| / ||exact||; of a matrix, the largest of that over its rows."""
    difference = result.double() - exact
    if exact.dim() == 1:
        return float(difference.norm() / exact.norm())
    return float((difference.norm(dim=1) / exact.norm(dim=1)).max())


def compare_models(
    plain: type[nn.Module],
    fused: type[nn.Module],
    arguments: Sequence[Any],
    x: Tensor,
    device: torch.device,
) -> None:
    """Build both models from one seed, run them on `x`, and print errors and times.

    Raises:
        SystemExit: The parameters differ, or the fused error is above twice PyTorch's own.
    """
    torch.manual_seed(0)
    model = plain(*arguments).to(device)
    torch.manual_seed(0)
    model_new = fused(*arguments).to(device)
    state, state_new = model.state_dict(), model_new.state_dict()
    same = state.keys() == state_new.keys() and all(
        torch.equal(state[name], state_new[name]) for name in state
    )
    if not same:
        raise SystemExit("the two models do not start from the same parameters")

    x = x.to(device)
    with torch.no_grad():
        result, result_new = model(x), model_new(x)
        time, time_new = median_seconds([lambda: model(x), lambda: model_new(x)], device)
        exact: Tensor = model.double()(x.double())
    error, error_new = relative_error(result, exact), relative_error(result_new, exact)
    print(f"{'':12}{'error vs float64':>18}{'time':>14}")
    print(f"{'PyTorch':12}{error:18.2e}{time * 1e6:11.0f} us")
    print(f"{'cutlass_ops':12}{error_new:18.2e}{time_new * 1e6:11.0f} us")
    print(f"cutlass_ops is {time / time_new:.2f}x as fast as PyTorch here.")
    if not error_new <= 2 * error + 4 * 2.0**-24:
        raise SystemExit("the fused result is less exact than it should be")
