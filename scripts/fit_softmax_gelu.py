"""Fits the polynomial of epilogue/softmax_gelu.h and prints its coefficients, highest power first.

    python scripts/fit_softmax_gelu.py [--degree 8]

gelu(x) = max(x, 0) - t * Phi(-t) with t = |x|, Phi the normal distribution function, and
Phi(-t) = 2^P(t). P approximates log2 Phi(-t) on [0, 6] so that the largest absolute error of
t * 2^P(t) is least: a weighted minimax fit, by Lawson's iteration of weighted least squares. P(0)
is held at -1, and the leading coefficient must be negative, so that t * 2^P(t) goes to 0 beyond 6.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np

END = 6.0  # t * Phi(-t) is 6e-9 there, a tenth of a rounding of 1
POINTS = 4000
ROUNDS = 200


def tail(t: np.ndarray) -> np.ndarray:
    """Phi(-t), in float64."""
    return np.array([math.erfc(x / math.sqrt(2.0)) / 2 for x in t.tolist()])


def fit(degree: int) -> tuple[np.ndarray, float]:
    """Coefficients from the constant one up, in float64, and the largest error of t * 2^P(t)."""
    nodes = np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)
    t = END * (1 - nodes) / 2
    phi = tail(t)
    target = np.log2(phi) + 1  # P + 1 = t * (a polynomial of a degree less)
    slope = t * phi * math.log(2.0)  # of t * 2^P in P
    powers = np.stack([t * (t / END) ** power for power in range(degree)], 1)
    weights = np.full(POINTS, 1 / POINTS)
    best, least = np.zeros(degree), math.inf
    for _ in range(ROUNDS):
        scale = np.sqrt(weights) * slope
        found = np.linalg.lstsq(powers * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(slope * (powers @ found - target))
        if error.max() < least:
            best, least = found, float(error.max())
        weights = weights * error
        weights /= weights.sum()
    return np.concatenate([[-1.0], best / END ** np.arange(degree)]), least


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--degree", type=int, default=8)
    degree = parser.parse_args(arguments).degree
    coefficients, error = fit(degree)
    if coefficients[-1] >= 0:
        print(f"degree {degree}: grows beyond {END}, no use", file=sys.stderr)
        return 1
    print(f"degree {degree}: |error| of t * 2^P(t) <= {error:.1e} before rounding")
    for coefficient in coefficients[::-1].astype(np.float32):
        print(f"{coefficient:.9g}f")
    return 0


if __name__ == "__main__":
    sys.exit(main())
