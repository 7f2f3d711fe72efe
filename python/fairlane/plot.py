"""Draws figures of results as Fairlane's pages do, on a light background.

This module lays a figure out and draws what all kinds have in common: axes, names, legend, marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from . import axis, theme
from .form import Figure, Mark, Series
from .kinds import KINDS, Bars, Cdf, Dots, Entry, Heat, Kind, Lines
from .label import shorten, width

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# The approximate number of ticks of the vertical axis, and the most lines that are named at their ends.
_Y_TICKS = 5
_AT_ENDS = 8
# The height of a line of text, in pixels.
_LINE = 17


def draw(series: list[Series], figure: Figure, ax: Axes | None = None) -> Axes:
    """Draws a figure of a file's series, on a new matplotlib figure or on ``ax``."""
    # Outside of the context: the first figure of a notebook loads what shows all others, and changes settings.
    on = ax.figure if ax else plt.figure(figsize=theme.SIZE, dpi=theme.DPI, facecolor=theme.PAPER, layout="constrained")
    with plt.rc_context(theme.STYLE):
        ax = ax or on.add_subplot()
        theme.dress(ax)
        kind = KINDS[figure.kind](figure, _entries(series, figure))
        box = ax.get_window_extent()
        across, up = _ranges(ax, kind, figure, box.width)
        kind.draw(ax, box.width)
        above = _marks(ax, kind, figure.marks, across, box.width) + 6
        x_title, y_title = _titles(figure, kind.entries[0].series if kind.entries else None)
        ax.set_xlabel(x_title, color=theme.SOFT)
        ax.annotate(y_title, (0, 1), (0, theme.points(above)), "axes fraction", "offset points", color=theme.SOFT)
        above += _LINE if y_title else 0
        at_ends = isinstance(kind, Lines) and sum(entry.named for entry in kind.entries) <= _AT_ENDS
        if at_ends:
            _name_ends(ax, kind.entries, up, box.height)
        above += _legend(ax, kind, at_ends, above, box.width)
        ax.set_title(figure.title, pad=theme.points(above + 6))
        if not any(len(entry.series.values) for entry in kind.entries):
            ax.annotate("nothing was measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=theme.SOFT)
    return ax


def _entries(series: list[Series], figure: Figure) -> list[Entry]:
    """The series of a figure.

    A label has the same colour throughout a file, by its position among all labels. If two labels of a figure would
    have the same colour, the later one gets a colour that is free in this figure.
    """
    coloured = [each for each in series if each.role == "measured" or each.group is not None]
    places = {label: place for place, label in enumerate(dict.fromkeys(each.label for each in coloured))}
    by_name = {each.name: each for each in series}
    chosen: dict[str, int | None] = {}
    count = len(theme.COLOURS)
    entries = []
    for each in (by_name[name] for name in figure.series):
        if each.label not in chosen:
            index = places.get(each.label)
            taken = {other % count for other in chosen.values() if other is not None}
            if index is not None and index % count in taken:
                index = next((free for free in range(count) if free not in taken), index)
            chosen[each.label] = index
        entries.append(Entry(each, chosen[each.label]))
    return entries


def _ranges(ax: Axes, kind: Kind, figure: Figure, pixels: float) -> tuple[axis.Range, axis.Range]:
    """Sets both axes, wide enough for data and marks, with round numbers. Returns their ranges."""
    across, up = kind.ranges()
    level = [mark.y for mark in figure.marks if mark.y is not None]
    if not isinstance(kind, Heat):
        up = axis.rounded(axis.around([*up, *level], with_zero=False), _Y_TICKS)
    if isinstance(kind, Bars | Heat):
        room = int(pixels / max(1, len(kind.names)) / 7.4)
        ax.set_xticks(range(len(kind.names)), [shorten(name, max(1, room)) for name in kind.names])
        ax.tick_params(axis="x", length=0)
    else:
        upright = [mark.x for mark in figure.marks if mark.x is not None]
        across = axis.around([*across, *upright], with_zero=False)
        ax.set_xticks(*axis.ticks(across, min(max(pixels / 55, 2), 10)))
    if isinstance(kind, Heat):
        ax.set_yticks(range(len(kind.entries)), [shorten(entry.series.label, 22) for entry in kind.entries])
    else:
        ax.set_yticks(*axis.ticks(up, _Y_TICKS))
    ax.set_xlim(across)
    ax.set_ylim(up)
    return across, up


def _titles(figure: Figure, first: Series | None) -> tuple[str, str]:
    """The titles of the axes: a quantity, with its unit in parentheses."""

    def title(name: str, unit: str) -> str:
        return f"{name} ({unit})" if name and unit else name or unit

    unit, x, x_unit = (first.unit, first.x.name, first.x.unit) if first else ("", "", "")
    if figure.kind == "cdf":
        return title(figure.x_label, unit), "share of samples"
    if figure.kind in ("bars", "heat") and figure.categories:
        return figure.x_label, title(figure.y_label, unit)
    return title(figure.x_label or x, x_unit), title(figure.y_label, unit)


def _marks(ax: Axes, kind: Kind, marks: list[Mark], across: axis.Range, pixels: float) -> float:
    """Draws the marks. Returns the height of their names above the axes, in pixels.

    A name that would overlap the one before is left out.
    """
    dotted: dict[str, Any] = {"color": theme.SOFT, "linewidth": theme.points(1), "linestyle": (0, (2, 3))}
    small: dict[str, Any] = {"color": theme.SOFT, "size": theme.points(12)}
    free, height = 0.0, 0.0
    for mark in marks:
        if mark.y is not None:
            ax.axhline(mark.y, **dotted)
            beside = (theme.points(6), theme.points(4))
            ax.annotate(shorten(mark.text, 28), (0, mark.y), beside, ax.get_yaxis_transform(), "offset points", **small)
        elif mark.x is not None and not isinstance(kind, Bars):
            ax.axvline(mark.x, **dotted)
            name = shorten(mark.text, 28)
            at = (mark.x - across[0]) / (across[1] - across[0]) * pixels
            start = min(at - 3, pixels - width(name))
            if start >= free - 3:
                ax.annotate(name, (start / pixels, 1), (0, theme.points(5)), "axes fraction", "offset points", **small)
                free, height = start + width(name) + 6, _LINE
    return height


def _name_ends(ax: Axes, entries: list[Entry], up: axis.Range, pixels: float) -> None:
    """Names lines to the right of their ends, moved apart if they would overlap."""
    # Names and titles take a quarter of the height.
    line = _LINE / (0.75 * pixels)
    ends = []
    for at, entry in enumerate(entries):
        values = entry.series.in_order[:, 1]
        known = values[np.isfinite(values)]
        if entry.named and len(known):
            ends.append(((known[-1] - up[0]) / (up[1] - up[0]), at))
    ends.sort()
    places = [place for place, _ in ends]
    for at in range(1, len(places)):
        places[at] = max(places[at], places[at - 1] + line)
    for at in reversed(range(len(places))):
        places[at] = min(places[at], 1 if at == len(places) - 1 else places[at + 1] - line)
    for place, (_, at) in zip(places, ends):
        name, colour = shorten(entries[at].series.label, 22), entries[at].colour
        beside = (1, place), (theme.points(10), 0), "axes fraction", "offset points"
        ax.annotate(name, *beside, color=colour, weight=600, va="center")


def _legend(ax: Axes, kind: Kind, at_ends: bool, above: float, pixels: float) -> float:
    """Draws the legend above the axes. Returns its height in pixels.

    It has one item for the expected values of all series, and none for lines that are named at their ends.
    """
    items: dict[str, Artist] = {}
    for entry in kind.entries:
        if not entry.named or at_ends or isinstance(kind, Heat):
            continue
        if isinstance(kind, Bars) and not entry.expected:
            items.setdefault(entry.series.label, Patch(color=entry.colour))
        elif isinstance(kind, Dots):
            items.setdefault(entry.series.label, Line2D([], [], linestyle="", color=entry.colour, **entry.marker))
        else:
            marker = entry.marker if isinstance(kind, Lines) and not entry.expected else {}
            items.setdefault(entry.series.label, Line2D([], [], **marker, **entry.style))
    expected = next((entry for entry in kind.entries if not entry.named), None)
    if expected and not isinstance(kind, Cdf | Heat):
        items["expected"] = Line2D([], [], **{**expected.style, "color": theme.towards_ink(theme.PLAIN)})
    if not items or len(items) == 1 and not expected:
        return 0
    longest = max(width(name) for name in items)
    columns = max(1, min(len(items), int(pixels / (longest + 44))))
    raised = ax.transAxes + ScaledTranslation(0, theme.points(above) / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        items.values(),
        [shorten(name, 30) for name in items],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        bbox_transform=raised,
        ncols=columns,
        borderpad=0,
        borderaxespad=0,
    )
    return _LINE * -(-len(items) // columns) + 4
