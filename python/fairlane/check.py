"""The rules that keep a result file consistent, as Fairlane itself checks them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .form import File, Figure, Metric, Series, Wrong


def check(file: File) -> None:
    """Raises :class:`~fairlane.form.Wrong` for the first rule that the file breaks."""
    for wrong in _broken(file):
        raise wrong


def _broken(file: File) -> Iterator[Wrong]:
    if not file.experiment:
        yield Wrong("experiment", "is empty, must name the experiment")
    known: dict[str, Series] = {}
    for at, series in enumerate(file.series):
        if not series.name:
            yield Wrong(f"series[{at}].name", "is empty, must name the series")
        if series.name in known:
            yield Wrong(f"series[{at}].name", f"`{series.name}` is taken by an earlier series")
        known[series.name] = series
    titles: set[str] = set()
    for at, figure in enumerate(file.figures):
        if figure.title in titles:
            yield Wrong(f"figures[{at}].title", f"`{figure.title}` is taken by an earlier figure")
        titles.add(figure.title)
        yield from _broken_figure(figure, known, f"figures[{at}]")
    for name, metric in file.metrics.items():
        yield from _broken_metric(metric, f"metrics.{name}")
    for at, claim in enumerate(file.claims):
        if claim.figure is not None and claim.figure not in titles:
            yield Wrong(f"claims[{at}].figure", f"no figure has the title `{claim.figure}`")


def _broken_figure(figure: Figure, known: dict[str, Series], place: str) -> Iterator[Wrong]:
    units = None
    for at, name in enumerate(figure.series):
        here = f"{place}.series[{at}]"
        if name not in known:
            yield Wrong(here, f"there is no series `{name}`")
            return
        own = (known[name].unit, known[name].x.unit)
        units = units or own
        if own != units:
            yield Wrong(here, f"`{name}` has other units than the figure's first series")
        if figure.kind == "bars" and figure.categories:
            xs, count = known[name].points[:, 0], len(figure.categories)
            stray = xs[(xs % 1 != 0) | (xs < 0) | (xs >= count)]
            if len(stray):
                yield Wrong(here, f"x = {stray[0]:g} has no name; whole numbers below {count} have one")
    for at, mark in enumerate(figure.marks):
        places = [each for each in (mark.x, mark.y) if each is not None]
        if len(places) != 1 or not math.isfinite(places[0]):
            yield Wrong(f"{place}.marks[{at}]", "must be at one number, x or y")


def _broken_metric(metric: Metric, place: str) -> Iterator[Wrong]:
    if metric.ci95 is not None:
        low, high = metric.ci95
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            yield Wrong(f"{place}.ci95", f"[{low:g}, {high:g}] is not [low, high]")
    n = int(np.isfinite(metric.samples).sum())
    if metric.samples and n != metric.n:
        yield Wrong(f"{place}.n", f"is {metric.n}, but there are {n} samples")
