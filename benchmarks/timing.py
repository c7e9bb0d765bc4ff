"""How it is measured: interleaved samples with a warm or a cold L2 cache.

On a GPU, times come from CUDA events.

* **warm**: an untimed call, then a block of back-to-back calls between two events, divided by
  their number. Operands that fit are in L2. If the host cannot launch as fast as the GPU computes,
  the sample is the host's pace, as in a loop of such calls.
* **cold**: before each call a buffer several times larger than L2 is written, which evicts the
  operands. Writing it takes longer than launching the call, so the sample is the GPU's time alone.

A training step is launched more slowly than that: behind a synchronisation, when the thread of
autograd has slept, the first took the host up to 900 us where later ones took 300. `ahead_us` keeps
the GPU busy for so long before every sample, so that it is the GPU's time wherever the host stays
ahead in a block; `host_us` tells the host's own.

The providers take turns within every round, and each round starts with another one, so that a
drift of clocks or temperature meets all of them alike. The figure is the median over rounds.
On a CPU, calls are timed one by one with `time.perf_counter`, in the same rotation.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.providers import Call

MIN_ROUNDS = 7
MAX_ROUNDS = 60
# A warm block lasts about this long, so that event resolution (about 1 us) does not matter.
BLOCK_US = 1000.0
MAX_BLOCK = 20
# Keeps the GPU busy at the start of a round until the first launches are queued (about 100 us).
SPIN_CYCLES = 200_000
CYCLES_PER_US = 2000  # at the least: no clock of these GPUs is higher


@dataclass(frozen=True)
class Samples:
    """The samples of one provider, in microseconds per call."""

    us: list[float]

    @property
    def median(self) -> float:
        """The figure that is reported."""
        return statistics.median(self.us)

    def quantile(self, share: float) -> float:
        """The sample below which `share` of all samples lie (nearest rank)."""
        ordered = sorted(self.us)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _rounds(total_us: float, seconds: float) -> int:
    return max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds * 1e6 / max(total_us, 1e-3))))


def _rotated(names: Sequence[str], by: int) -> list[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]


class Timer:
    """Times calls on one device.

    Args:
        device: Where the calls run.
        seconds: About how long one comparison (all providers, one cache state) may take.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self.seconds = seconds
        self._flush_buffer: torch.Tensor | None = None
        if device.type == "cuda":
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            self._flush_buffer = torch.empty(
                max(8 * l2_bytes, 1 << 28), dtype=torch.int8, device=device
            )

    def cache_states(self) -> tuple[str, ...]:
        """The cache states that can be told apart on this device."""
        return ("warm", "cold") if self._flush_buffer is not None else ("warm",)

    def compare(
        self, calls: Mapping[str, Call], cache: str, ahead_us: float = 0.0
    ) -> dict[str, Samples]:
        """Interleaved samples of every call.

        Args:
            calls: Provider name -> call; each has run at least once.
            cache: "warm" or "cold".
            ahead_us: How long the GPU is kept busy before every sample, in microseconds.
        """
        if self._flush_buffer is None:
            return self._compare_cpu(calls)
        if cache == "cold":
            return self._compare_cold(calls, self._flush_buffer, ahead_us)
        return self._compare_warm(calls, ahead_us)

    def host_us(self, call: Call) -> float:
        """Host time to launch `call` once on a GPU, in microseconds: the least of three means of
        ten; on a CPU, 0, a call and its launch being the same."""
        if self._flush_buffer is None:
            return 0.0
        means = []
        for _ in range(3):
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            for _ in range(10):
                call()
            means.append((time.perf_counter() - start) * 1e5)
        torch.cuda.synchronize(self.device)
        return min(means)

    def peak_bytes(self, call: Call) -> int | None:
        """Most GPU memory that `call` holds at a time beyond its operands, its result included;
        None on a CPU."""
        if self._flush_buffer is None:
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        return torch.cuda.max_memory_allocated(self.device) - before

    def _compare_cpu(self, calls: Mapping[str, Call]) -> dict[str, Samples]:
        def once(call: Call) -> float:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e6

        estimate = sum(once(call) for call in calls.values())
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(_rounds(estimate, self.seconds)):
            for name in _rotated(list(calls), turn):
                samples[name].append(once(calls[name]))
        return {name: Samples(us) for name, us in samples.items()}

    def _estimate_us(self, call: Call) -> float:
        torch.cuda.synchronize(self.device)
        pair = _EventPair()
        with pair:
            call()
            call()
        torch.cuda.synchronize(self.device)
        return pair.us() / 2

    def _compare_warm(self, calls: Mapping[str, Call], ahead_us: float) -> dict[str, Samples]:
        estimates = {name: self._estimate_us(call) for name, call in calls.items()}
        blocks = {
            name: max(1, min(MAX_BLOCK, round(BLOCK_US / max(us, 1.0))))
            for name, us in estimates.items()
        }
        total = sum(us * (blocks[name] + 1) + ahead_us for name, us in estimates.items())

        def sample(name: str) -> "_EventPair":
            self._stay_ahead(ahead_us)
            calls[name]()
            pair = _EventPair()
            with pair:
                for _ in itertools.repeat(None, blocks[name]):
                    calls[name]()
            return pair

        raw = self._run_rounds(list(calls), _rounds(total, self.seconds), sample)
        return {name: Samples([us / blocks[name] for us in raw[name]]) for name in calls}

    def _compare_cold(
        self, calls: Mapping[str, Call], buffer: torch.Tensor, ahead_us: float
    ) -> dict[str, Samples]:
        total = sum(self._estimate_us(call) for call in calls.values())
        total += len(calls) * (self._estimate_us(buffer.zero_) + ahead_us)

        def sample(name: str) -> "_EventPair":
            self._stay_ahead(ahead_us)
            buffer.zero_()
            pair = _EventPair()
            with pair:
                calls[name]()
            return pair

        raw = self._run_rounds(list(calls), _rounds(total, self.seconds), sample)
        return {name: Samples(us) for name, us in raw.items()}

    @staticmethod
    def _stay_ahead(us: float) -> None:
        if us > 0:
            torch.cuda._sleep(int(us * CYCLES_PER_US))

    def _run_rounds(
        self, names: Sequence[str], rounds: int, sample: Callable[[str], "_EventPair"]
    ) -> dict[str, list[float]]:
        """`rounds` times: queue one sample of every provider, then wait for all of them."""
        results: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            torch.cuda._sleep(SPIN_CYCLES)
            pairs = [(name, sample(name)) for name in _rotated(names, turn)]
            torch.cuda.synchronize(self.device)
            for name, pair in pairs:
                results[name].append(pair.us())
        return results


class _EventPair:
    """A `with` block whose GPU time `us()` tells after a synchronisation."""

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def __enter__(self) -> None:
        self._start.record()

    def __exit__(self, *_: object) -> None:
        self._end.record()

    def us(self) -> float:
        return float(self._start.elapsed_time(self._end)) * 1e3


def copy_bandwidth(timer: Timer) -> float:
    """Measured device-to-device copy bandwidth in GB/s, counting bytes read and bytes written."""
    elements = 1 << (28 if timer.device.type == "cuda" else 24)
    source = torch.rand(elements, device=timer.device)
    target = torch.empty_like(source)

    def copy() -> torch.Tensor:
        return target.copy_(source)

    copy()
    median = timer.compare({"copy": copy}, "warm")["copy"].median
    return 2 * 4 * elements / median / 1e3
