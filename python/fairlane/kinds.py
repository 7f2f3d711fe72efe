"""The kinds of figure: what each draws of its series, and the ranges that this takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import patheffects
from matplotlib.colors import LinearSegmentedColormap

from . import axis, stats, theme
from .axis import Range
from .form import Figure, Points, Series
from .label import number, quantity, width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^"
# The least distance between points with a marker each, and the widest bar, in pixels.
_APART = 12
_WIDEST = 72


@dataclass(frozen=True)
class Entry:
    """A series in a figure; ``index`` is that of its colour and marker, None for expected values of no series."""

    series: Series
    index: int | None

    @property
    def colour(self) -> str:
        """Its colour."""
        own = theme.PLAIN if self.index is None else theme.COLOURS[self.index % len(theme.COLOURS)]
        return theme.towards_ink(own) if self.expected else own

    @property
    def expected(self) -> bool:
        """Whether its values were expected, not measured."""
        return self.series.role == "expected"

    @property
    def named(self) -> bool:
        """Whether its own name is shown. Expected values of a series have that series' colour instead."""
        return not self.expected or self.index is None

    @property
    def style(self) -> dict[str, Any]:
        """How its lines are drawn: thin and dashed if expected, and above those that were measured."""
        if not self.expected:
            return {"color": self.colour}
        dashes = (0, (5 / 1.25, 4 / 1.25))
        return {"color": self.colour, "linewidth": theme.points(1.25), "linestyle": dashes, "zorder": 3}

    @property
    def marker(self) -> dict[str, Any]:
        """Its marker, which distinguishes it without colour."""
        own = MARKERS[(self.index or 0) % len(MARKERS)]
        edge = {"markeredgecolor": theme.PAPER, "markeredgewidth": theme.points(1)}
        return {"marker": own, "markersize": theme.points(8 if own in "o^" else 7), **edge}


class Plane:
    """Samples in a plane of x and values."""

    def __init__(self, figure: Figure, entries: list[Entry]) -> None:
        self.entries = entries

    def ranges(self) -> tuple[Range, Range]:
        """Those of x, and of the values with zero."""
        points = np.concatenate([np.empty((0, 2)), *(entry.series.points for entry in self.entries)])
        return axis.across(points[:, 0]), axis.around(points[:, 1], with_zero=True)


class Lines(Plane):
    """Values along x, one line a series."""

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws the lines, interrupted at values that were not measured, with markers if there is room."""
        for entry in self.entries:
            x, y = axis.drawn(entry.series.in_order).T
            known = np.concatenate([[False], np.isfinite(y), [False]])
            alone = np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:])
            every = alone if entry.expected or len(x) * _APART > pixels else np.arange(len(x))
            ax.plot(x, y, markevery=every.tolist(), clip_on=False, **entry.marker, **entry.style)


class Means(Lines):
    """Lines over repeats: at each x the mean of the values, in a band that is its 95% interval (Student's)."""

    def __init__(self, figure: Figure, entries: list[Entry]) -> None:
        means, self.bands = [], []
        for entry in entries:
            groups = list(_by_x(entry.series))
            points = np.array([[x, stats.mean(values)] for x, values in groups]).reshape(-1, 2)
            means.append(replace(entry, series=replace(entry.series, points=points)))
            band = np.array([[x, *stats.student(values)] for x, values in groups]).reshape(-1, 3)
            self.bands.append(band[np.isfinite(band[:, 1])])
        super().__init__(figure, means)

    def ranges(self) -> tuple[Range, Range]:
        """Those of the means, with the bands."""
        x, y = super().ranges()
        ends = np.concatenate([[*y], *(band[:, 1:].ravel() for band in self.bands)])
        return x, axis.around(ends, with_zero=True)

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws bands and means."""
        for entry, band in zip(self.entries, self.bands):
            if len(band) > 1:
                ax.fill_between(*axis.drawn(band).T, color=entry.colour, alpha=0.18, linewidth=0)
        super().draw(ax, pixels)


class Bars:
    """For each x the median of the values, with its 95% interval (bootstrap); one bar a series."""

    def __init__(self, figure: Figure, entries: list[Entry]) -> None:
        self.entries = entries
        xs, self.names = _places(figure, entries)
        self.medians = np.full((len(entries), len(xs)), np.nan)
        self.intervals = np.full((len(entries), len(xs), 2), np.nan)
        for row, entry in enumerate(entries):
            for x, values in _by_x(entry.series):
                self.medians[row, xs.index(x)] = stats.median(values)
                self.intervals[row, xs.index(x)] = stats.bootstrap_median(values)

    def ranges(self) -> tuple[Range, Range]:
        """A unit of x for each place; medians and intervals, with zero, where bars start."""
        values = np.concatenate([self.medians.ravel(), self.intervals.ravel()])
        return (-0.5, max(1, len(self.names)) - 0.5), axis.around(values, with_zero=True)

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws the bars, with their numbers if there is room; expected values are lines across the bars."""
        slot = pixels / max(1, len(self.names))
        measured = [row for row, entry in enumerate(self.entries) if not entry.expected]
        thick = min(0.72 / max(1, len(measured)), _WIDEST / slot)
        group = thick * len(measured)
        places = np.arange(len(self.names))
        for nth, row in enumerate(measured):
            middles = places - group / 2 + thick * (nth + 0.5)
            ax.bar(middles, self.medians[row], 0.92 * thick, color=self.entries[row].colour)
            for middle, median, (low, high) in zip(middles, self.medians[row], self.intervals[row]):
                _whisker(ax, middle, low, high)
                if np.isfinite(median) and width(number(median)) <= thick * slot + 4:
                    at, above = (middle, np.nanmax([median, high])), (0, theme.points(5))
                    ax.annotate(number(median), at, above, textcoords="offset points", ha="center", size="small")
        half = min(group / 2 + 8 / slot, 0.5)
        for row, entry in enumerate(self.entries):
            if entry.expected:
                for place, median in zip(places, self.medians[row]):
                    ax.plot([place - half, place + half], [median, median], **entry.style)


class Cdf:
    """The cumulative distribution of each series' values; x is not used."""

    def __init__(self, figure: Figure, entries: list[Entry]) -> None:
        self.entries = entries

    def ranges(self) -> tuple[Range, Range]:
        """Those of the values, and of shares."""
        return axis.across(value for entry in self.entries for value in entry.series.values), (0.0, 1.0)

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws a step for each value."""
        right = ax.get_xlim()[1]
        for entry in self.entries:
            values = np.sort(axis.drawn(entry.series.values))
            if len(values):
                x = np.concatenate([values[:1], values, [right]])
                y = np.concatenate([np.arange(len(values) + 1) / len(values), [1.0]])
                ax.plot(x, y, drawstyle="steps-post", clip_on=False, **entry.style)


class Dots(Plane):
    """Each sample as a point."""

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws the points."""
        for entry in self.entries:
            x, y = axis.drawn(entry.series.points).T
            ax.plot(x, y, clip_on=False, linestyle="", color=entry.colour, **entry.marker)


class Heat:
    """A table of cells, a row a series and a column an x, coloured by the mean of the values at their place."""

    def __init__(self, figure: Figure, entries: list[Entry]) -> None:
        self.entries = entries
        xs, self.names = _places(figure, entries)
        self.means = np.full((len(entries), len(xs)), np.nan)
        for row, entry in enumerate(entries):
            for x, values in _by_x(entry.series):
                self.means[row, xs.index(x)] = stats.mean(values)

    def ranges(self) -> tuple[Range, Range]:
        """A unit for each column, and for each row."""
        return (-0.5, max(1, len(self.names)) - 0.5), (-0.5, max(1, len(self.entries)) - 0.5)

    def draw(self, ax: Axes, pixels: float) -> None:
        """Draws the cells, with their numbers if there is room."""
        if not np.isfinite(self.means).any():
            return
        colours = LinearSegmentedColormap.from_list("heat", [theme.PAPER, theme.COLOURS[0]])
        low, high = np.nanmin(self.means), np.nanmax(self.means)
        # The faintest cell is not taken for one without a value.
        edges = [np.arange(length + 1) - 0.5 for length in (len(self.names), len(self.entries))]
        ax.pcolormesh(*edges, self.means, cmap=colours, vmin=low - 0.08 * (high - low), vmax=high, edgecolors=theme.PAPER)
        room = pixels / len(self.names)
        for (row, column), mean in np.ndenumerate(self.means):
            if np.isfinite(mean) and width(number(mean)) <= room - 4:
                ax.annotate(number(mean), (column, row), ha="center", va="center", size="small")


Kind = Lines | Bars | Cdf | Dots | Heat
KINDS: dict[str, type[Kind]] = {"lines": Lines, "means": Means, "bars": Bars, "cdf": Cdf, "points": Dots, "heat": Heat}


def _places(figure: Figure, entries: list[Entry]) -> tuple[list[float], list[str]]:
    """The places along x of a figure that names them, and their names."""
    xs = sorted({x for entry in entries for x in entry.series.points[:, 0].tolist()})
    unit = entries[0].series.x.unit if entries else ""
    named = {float(at): name for at, name in enumerate(figure.categories)}
    return xs, [named.get(x) or quantity(x, unit) for x in xs]


def _whisker(ax: Axes, at: float, low: float, high: float) -> None:
    # A halo separates it from a bar of a similar colour.
    halo = [patheffects.withStroke(linewidth=theme.points(3.5), foreground=theme.PAPER)]
    ends: dict[str, Any] = {"marker": "_", "markersize": theme.points(10), "markeredgewidth": theme.points(1.5)}
    ax.plot([at, at], [low, high], color=theme.INK, linewidth=theme.points(1.5), path_effects=halo, **ends)


def _by_x(series: Series) -> Iterable[tuple[float, Points]]:
    """Each x in ascending order, with its values."""
    points = series.in_order
    xs, starts = np.unique(points[:, 0], return_index=True)
    return zip(xs.tolist(), np.split(points[:, 1], starts[1:]))
