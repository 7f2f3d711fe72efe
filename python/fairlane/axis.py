"""Ranges and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .label import number

# Larger magnitudes count as this one, so that differences do not overflow.
_LIMIT = 1e300

Range = tuple[float, float]


def drawn(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values where they are drawn: NaN if they were not measured."""
    return np.where(np.isfinite(values), np.clip(values, -_LIMIT, _LIMIT), np.nan)


def around(values: Iterable[float], with_zero: bool) -> Range:
    """The range of all values, with zero or not; 0 to 1 if there are none. Never empty."""
    kept = [value for value in drawn(np.fromiter(values, np.float64)) if not math.isnan(value)] + [0.0] * with_zero
    if not kept:
        return 0.0, 1.0
    low, high = float(min(kept)), float(max(kept))
    largest = max(abs(low), abs(high))
    if high - low > max(largest * 1e-9, 1e-290):
        return low, high
    half = largest / 2 if largest > 1e-290 else 1.0
    return (low if with_zero else low - half), high + half


def across(values: Iterable[float]) -> Range:
    """The range of a horizontal axis: from zero if the least value is close to it, as the first sample of a run is."""
    low, high = around(values, with_zero=False)
    return (0.0, high) if 0 <= low <= 0.15 * high else (low, high)


def rounded(ends: Range, want: float) -> Range:
    """The range widened to ticks at both ends."""
    step = _step(ends, want)
    wider = math.floor(ends[0] / step + 1e-9) * step, math.ceil(ends[1] / step - 1e-9) * step
    # A wider range may need wider steps.
    return rounded(wider, want) if _step(wider, want) > 1.5 * step else wider


def ticks(ends: Range, want: float) -> tuple[list[float], list[str]]:
    """Round values in a range, about ``want`` of them, and their texts: k, M, G or T for long numbers."""
    step = _step(ends, want)
    first, last = math.ceil(ends[0] / step - 1e-9), math.floor(ends[1] / step + 1e-9)
    values = [nth * step for nth in range(first, last + 1)]
    largest = max(abs(end) for end in ends)
    if not 1e-4 <= largest < 1e15:
        return values, [number(value) for value in values]
    suffix, unit = next((suffix, unit) for suffix, unit, start in _UNITS if largest >= start)
    digits = step / unit
    exact = (places for places in range(12) if math.isclose(round(digits, places), digits, rel_tol=1e-6))
    places = next(exact, 12)
    return values, ["0" if value == 0 else f"{value / unit:.{places}f}{suffix}" for value in values]


_UNITS = (("T", 1e12, 1e12), ("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4), ("", 1.0, 0.0))


def _step(ends: Range, want: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that divides a range into at most ``want`` steps."""
    rough = (ends[1] - ends[0]) / want
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10, 20) if times * power >= rough * (1 - 1e-9))
