"""A run's result, as data frames and plots."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import plot, stats
from .check import check
from .form import SCHEMA, Error, File, Figure, Host, Series, Source, Wrong, decode, parse, read_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """One run of one experiment, with all data of its tables and plots."""

    path: Path
    """The file it was read from."""
    experiment: str
    """The experiment's name."""
    source: Source | None
    """The published experiment that it repeats; None for Fairlane's own."""
    machine: str | None
    """The machine under measurement, such as ``xen``; None if it is the host itself."""
    started: pd.Timestamp
    """The time of its start, UTC."""
    host: Host
    """The computer it ran on."""
    settings: dict[str, Any]
    """Its settings by name: what is needed to run it again."""
    warnings: list[str]
    """Reservations about the numbers."""
    series: list[Series]
    """The raw samples, series by series."""
    figures: list[Figure]
    """The figures, in the order of the page."""
    metrics: pd.DataFrame
    """Single numbers, by name: ``value``, the 95% interval from ``low`` to ``high`` (NaN if there is none), ``unit``,
    ``n``, ``estimate`` (how value and interval follow from the samples) and ``samples``."""
    claims: pd.DataFrame
    """Claims, with the column ``verdict``: holds, does not hold, undecided or not measured. A claim ``about`` fairlane
    that does not hold is a failure; one about a source is a finding."""

    @cached_property
    def samples(self) -> pd.DataFrame:
        """All samples, one a row: ``series``, ``group``, ``role``, ``x``, ``value``, their units ``x_unit`` and
        ``unit``, and ``x_name``, the quantity of x. A value that was not measured is NaN."""
        of = np.repeat(np.arange(len(self.series)), [len(series.points) for series in self.series])
        points = np.concatenate([np.empty((0, 2)), *(series.points for series in self.series)])

        def column(texts: Sequence[str | None]) -> pd.Categorical:
            return pd.Categorical(texts, categories=list(dict.fromkeys(filter(_known, texts)))).take(of)

        return pd.DataFrame(
            {
                "series": column([series.name for series in self.series]),
                "group": column([series.group for series in self.series]),
                "role": column([series.role for series in self.series]),
                "x": points[:, 0],
                "value": points[:, 1],
                "x_name": column([series.x.name for series in self.series]),
                "x_unit": column([series.x.unit for series in self.series]),
                "unit": column([series.unit for series in self.series]),
            }
        )

    @property
    def holds(self) -> bool:
        """Whether every claim about Fairlane holds."""
        ours = self.claims[self.claims["about"] == "fairlane"]
        return bool((ours["verdict"] == "holds").all())

    def ratio_to(self, base: Result) -> pd.DataFrame:
        """The ratio of each metric to that of the same name and unit in another result: ``value``, and its 95% interval
        from ``low`` to ``high``, as if both were independent.

        A metric without an interval counts as exact; if neither has one, nor does the ratio.
        """
        both = self.metrics.join(base.metrics.add_suffix("_base"), how="inner")
        both = both[both["unit"] == both["unit_base"]]

        def row(metric: Any) -> tuple[float, float, float]:
            own, divisor = (metric.low, metric.high), (metric.low_base, metric.high_base)
            if math.isnan(metric.low):
                own = (metric.value, metric.value)
            if math.isnan(metric.low_base):
                divisor = (metric.value_base, metric.value_base)
            known = not (math.isnan(metric.low) and math.isnan(metric.low_base))
            ends = (
                stats.ratio_interval(metric.value, own, metric.value_base, divisor) if known else (math.nan, math.nan)
            )
            return metric.value / metric.value_base if metric.value_base else math.nan, *ends

        rows = [row(metric) for metric in both.itertuples()]
        return pd.DataFrame(rows, index=both.index, columns=["value", "low", "high"])

    def plot(self, title: str | None = None, ax: Axes | None = None) -> list[Axes]:
        """Draws the figure of a title, as the page has it; without a title every figure.

        ``ax`` is where to draw a single figure; without it each gets a matplotlib figure of its own. Raises KeyError
        for a title that no figure has.
        """
        figures = [figure for figure in self.figures if title in (None, figure.title)]
        if title is not None and not figures:
            titles = ", ".join(repr(figure.title) for figure in self.figures)
            raise KeyError(f"{self.path}: no figure has the title {title!r}; there are {titles or 'none'}")
        if ax is not None and len(figures) != 1:
            raise ValueError(f"{self.path}: {len(figures)} figures do not fit into one ax; give a title")
        return [plot.draw(self.series, figure, ax) for figure in figures]

    def __repr__(self) -> str:
        on = f" on {self.machine}" if self.machine else ""
        held = int((self.claims["verdict"] == "holds").sum())
        counts = f"{len(self.series)} series, {len(self.metrics)} metrics, {held} of {len(self.claims)} claims hold"
        return f"<{self.experiment}{on}, {self.started:%Y-%m-%d %H:%M} UTC: {counts}>"


def read(path: str | os.PathLike[str]) -> Result:
    """Reads and checks a result file; for a directory, ``result.json`` in it.

    Raises :class:`~fairlane.Error` for a file of another version or form, with the place in it, and OSError if it
    cannot be read.
    """
    path = Path(path)
    path = path / "result.json" if path.is_dir() else path
    content = parse(read_text(path), str(path))
    # The schema is checked first: errors about the fields of another version would mislead.
    if content.get("schema") != SCHEMA:
        raise Error(f"{path}: schema is {content.get('schema')!r}; this version knows {SCHEMA!r}")
    try:
        file: File = decode(File, content)
        check(file)
        started = _utc(file.started)
    except Wrong as wrong:
        raise Error(f"{path}: {wrong}") from None
    return Result(
        path=path,
        experiment=file.experiment,
        source=file.source,
        machine=file.machine,
        started=started,
        host=file.host,
        settings=file.settings,
        warnings=file.warnings,
        series=file.series,
        figures=file.figures,
        metrics=_metrics(file),
        claims=_claims(file),
    )


def find(*paths: str | os.PathLike[str]) -> list[Path]:
    """The result files that paths name: files as given, and every ``result.json`` below a directory, in their order;
    each once.

    Raises FileNotFoundError for a directory without one.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        below = sorted(path.rglob("result.json")) if path.is_dir() else [path]
        if not below:
            raise FileNotFoundError(f"{path}: holds no result.json, nor does a directory in it")
        found.extend(below)
    return list({path.resolve(): path for path in found}.values())


def _known(text: str | None) -> bool:
    return text is not None


def _utc(text: str) -> pd.Timestamp:
    try:
        return pd.Timestamp(text).tz_convert("UTC")
    except (ValueError, TypeError):
        raise Wrong("started", f"is {text!r}, must be a time as 2026-01-31T12:00:00Z") from None


def _metrics(file: File) -> pd.DataFrame:
    rows = [
        (each.value, *(each.ci95 or (math.nan, math.nan)), each.unit, each.n, each.estimate, each.samples)
        for each in file.metrics.values()
    ]
    columns = ["value", "low", "high", "unit", "n", "estimate", "samples"]
    return pd.DataFrame(rows, index=pd.Index(file.metrics, name="metric", dtype=object), columns=columns)


def _claims(file: File) -> pd.DataFrame:
    def verdict(holds: bool, open: str | None) -> str:
        return "holds" if holds else open.replace("_", " ") if open else "does not hold"

    columns = ["about", "source", "text", "expected", "measured", "ours", "verdict", "figure"]
    rows = [
        (
            *(claim.about, claim.source, claim.text, claim.expected, claim.measured, claim.ours),
            verdict(claim.holds, claim.open),
            claim.figure,
        )
        for claim in file.claims
    ]
    return pd.DataFrame(rows, columns=columns)
