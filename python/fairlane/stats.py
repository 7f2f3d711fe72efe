"""The statistics of results: the same numbers as in Fairlane's own pages and tables.

A sample that is not finite counts as not measured and is left out. Where too few samples are left, the answer is NaN,
or an interval of two NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .chacha import Generator

Samples = ArrayLike
"""Numbers of one unit."""

Interval = tuple[float, float]
"""The lower and the upper end of a 95% confidence interval."""

_NONE: Interval = (math.nan, math.nan)
_RESAMPLES = 2000
_SEED = 0x0FA1_71A9
# The 0.975 quantiles of Student's t up to 30 degrees of freedom.
_T975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def finite(samples: Samples) -> NDArray[np.float64]:
    """The samples that were measured, in order."""
    values = np.asarray(samples, dtype=np.float64)
    measured: NDArray[np.float64] = values[np.isfinite(values)]
    return measured


def mean(samples: Samples) -> float:
    """The arithmetic mean, in the samples' unit."""
    values = finite(samples)
    n = len(values)
    if n == 0:
        return math.nan
    # A sum of such values may overflow.
    return float((values / n).sum() if np.abs(values).max() > 1e300 else values.mean())


def median(samples: Samples) -> float:
    """The median, in the samples' unit: the :func:`quantile` at one half."""
    return quantile(samples, 0.5)


def quantile(samples: Samples, p: float) -> float:
    """The quantile at ``p`` (0 to 1), in the samples' unit.

    It is interpolated linearly between the samples on either side of position (n - 1) p, counted from zero in ascending
    order (definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996).
    """
    values = finite(samples)
    return float(_quantile(values, p)) if len(values) else math.nan


def _quantile(values: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    """The quantile along the last axis."""
    last = values.shape[-1] - 1
    part, below = math.modf(last * p)
    index = int(below)
    above = min(index + 1, last)
    parted = np.partition(values, (index, above), axis=-1)
    low, high = parted[..., index], parted[..., above]
    between: NDArray[np.float64] = np.clip(low * (1 - part) + high * part, low, high)
    return between


def jain(shares: Samples) -> float:
    """Jain's fairness index of shares: 1 if all are equal, 1/n if one has everything.

    NaN if all shares are zero, or one is negative. (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness",
    DEC-TR-301, 1984.)
    """
    values = finite(shares)
    if not values.any() or (values < 0).any():
        return math.nan
    values = values / values.max()
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def student(samples: Samples) -> Interval:
    """The 95% interval of the mean by Student's t, in the samples' unit.

    For few samples that are nearly normally distributed; at least two.
    """
    values = finite(samples)
    freedom = len(values) - 1
    if freedom < 1:
        return _NONE
    with np.errstate(over="ignore", invalid="ignore"):
        middle, half = mean(values), _t975(freedom) * math.sqrt(values.var(ddof=1) / len(values))
    ends = middle - half, middle + half
    return ends if all(map(math.isfinite, ends)) else _NONE


def _t975(freedom: int) -> float:
    """The 0.975 quantile of Student's t.

    Beyond the table by two terms of its expansion about the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = 1.959_964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def bootstrap_median(samples: Samples) -> Interval:
    """The 95% interval of the median by the percentile bootstrap, in the samples' unit; from two samples on.

    2,000 resamples with a fixed seed (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3).
    """
    return _bootstrap(samples, lambda resamples: _quantile(resamples, 0.5))


def bootstrap_mean(samples: Samples) -> Interval:
    """The 95% interval of the mean, otherwise as :func:`bootstrap_median`."""
    return _bootstrap(samples, lambda resamples: np.asarray(resamples.mean(axis=-1)))


def _bootstrap(samples: Samples, statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Interval:
    values = finite(samples)
    n = len(values)
    if n < 2:
        return _NONE
    random = Generator(_SEED)
    estimates = np.empty(_RESAMPLES)
    # Some resamples at a time, for their memory.
    at_once = max(1, (1 << 20) // n)
    for done in range(0, _RESAMPLES, at_once):
        size = min(at_once, _RESAMPLES - done)
        resamples = values[random.below(n, size * n)].reshape(size, n)
        estimates[done : done + size] = statistic(resamples)
    return float(_quantile(estimates, 0.025)), float(_quantile(estimates, 0.975))


def ratio_interval(value: float, ends: Interval, base: float, base_ends: Interval) -> Interval:
    """The 95% interval of ``value / base``, two independent estimates with their own 95% intervals.

    By the method of variance estimates recovery (Newcombe, "MOVER-R confidence intervals for ratios and products of two
    independently estimated quantities", 2016). The upper end is infinite if the base's interval reaches zero; both are
    NaN unless all numbers are finite and the base is not zero.
    """
    if not all(map(math.isfinite, (value, *ends, base, *base_ends))) or base == 0:
        return _NONE
    (low, high), (base_low, base_high) = ends, base_ends
    if low == high and base_low == base_high:
        return value / base, value / base
    if base < 0:
        return ratio_interval(-value, (-high, -low), -base, (-base_high, -base_low))
    if value < 0:
        negative = ratio_interval(-value, (-high, -low), base, base_ends)
        return -negative[1], -negative[0]
    # The ends are the ratios r at which the interval of value - r base has an end at zero.
    below, above = low * (2 * value - low), high * (2 * value - high)
    near, far = base_low * (2 * base - base_low), base_high * (2 * base - base_high)

    def root(product: float) -> float:
        return math.sqrt(max(0.0, (value * base) ** 2 - product))

    least = below / (value * base + root(below * (near if below < 0 else far))) if below != 0 else 0.0
    most = (value * base + root(above * near)) / near if base_low > 0 else math.inf
    return least, most
