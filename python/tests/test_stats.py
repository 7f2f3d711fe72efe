"""The statistics are those of the crate fairlane-report."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fairlane
from fairlane import stats
from fairlane.chacha import Generator

ESTIMATES = {
    "median": (stats.median, stats.bootstrap_median),
    "mean": (stats.mean, stats.bootstrap_mean),
    "mean_student": (stats.mean, stats.student),
}


def test_values_and_intervals_are_those_that_the_report_computed(runs: list[fairlane.Result]) -> None:
    """For every metric with few samples, and some with many: each bootstrap has the report's own random numbers."""
    compared = dict.fromkeys(ESTIMATES, 0)
    large = 0
    for run in runs:
        for name, metric in run.metrics.iterrows():
            estimate, n = metric["estimate"], metric["n"]
            if estimate not in ESTIMATES or n > 40 and (n > 1000 or large == 3):
                continue
            large += n > 40
            compared[estimate] += 1
            value, interval = ESTIMATES[estimate]
            assert value(metric["samples"]) == pytest.approx(metric["value"], rel=1e-12, nan_ok=True), (run, name)
            ends = (metric["low"], metric["high"])
            assert interval(metric["samples"]) == pytest.approx(ends, rel=1e-9, nan_ok=True), (run, name)
    assert large == 3 and min(compared[estimate] for estimate in ("median", "mean_student")) > 50, compared


def test_intervals_of_the_bootstrap_are_the_same_everywhere() -> None:
    """The crate has a test of these figures, too."""
    samples = [3.1, 2.7, 8.25, 1.0, 4.5, 9.75, 6.0]
    assert stats.bootstrap_mean(samples) == pytest.approx((3.0278571428571426, 7.393214285714284), abs=1e-12)
    assert stats.bootstrap_median(samples) == (2.7, 8.25)


def test_a_number_that_could_be_biased_takes_one_more_word() -> None:
    end = (1 << 31) + (1 << 30)
    words = iter(Generator(7).words(400).tolist())
    expected = []
    for _ in range(200):
        product = next(words) * end
        number, fraction = product >> 32, product & 0xFFFF_FFFF
        if fraction > (1 << 32) - end:
            number += fraction + (next(words) * end >> 32) >= 1 << 32
        expected.append(number)
    random = Generator(7)
    assert [*random.below(end, 150), *random.below(end, 50)] == expected
    assert int(random.words(1)[0]) == next(words)


def test_known_values() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.quantile([1, 2, 3, 4], 0.25) == 1.75
    assert stats.mean([1, math.nan, 3]) == 2
    assert stats.mean([1.7e308, 1.7e308]) == 1.7e308 and all(map(math.isnan, stats.student([1.7e308, -1.7e308])))
    assert stats.jain([1, 0, 0, 0]) == 0.25
    assert stats.jain([7, 7]) == 1
    assert all(map(math.isnan, (stats.jain([]), stats.jain([0]), stats.jain([1, -1]))))
    assert all(map(math.isnan, (stats.mean([]), stats.median([math.nan]), *stats.student([1]))))
    assert all(map(math.isnan, stats.bootstrap_median([1])))
    assert stats.student([1, 2, 3, 4, 5]) == pytest.approx((1.0368, 4.9632), abs=1e-3)
    # 41 samples: beyond the table of t.
    samples = np.arange(41.0)
    assert stats.student(samples)[1] == pytest.approx(20 + 2.0211 * samples.std(ddof=1) / math.sqrt(41), abs=1e-3)


def test_a_ratio_s_interval_follows_from_two_intervals() -> None:
    cases = [
        ((10, (8, 13), 2, (2, 2)), (4, 6.5)),
        ((2, (2, 2), 10, (8, 16)), (2 / 16, 2 / 8)),
        ((100, (97, 103), 100, (96, 104)), (0.951, 1.052)),
        ((-100, (-103, -97), 100, (96, 104)), (-1.052, -0.951)),
        ((100, (97, 103), -100, (-104, -96)), (-1.052, -0.951)),
        ((10, (9, 11), 1, (0, 2)), (4.95, math.inf)),
        ((0, (0, 0), 1, (0.5, 1.5)), (0, 0)),
        ((0.3, (0.3, 0.3), 0.1, (0.1, 0.1)), (0.3 / 0.1, 0.3 / 0.1)),
        ((1, (1, 1), 0, (0, 0)), (math.nan, math.nan)),
        ((math.nan, (1, 1), 1, (1, 1)), (math.nan, math.nan)),
    ]
    for (value, ends, base, base_ends), expected in cases:
        found = stats.ratio_interval(value, ends, base, base_ends)
        assert found == pytest.approx(expected, abs=1e-3, nan_ok=True)
