"""The look of Fairlane's pages, light: colours, line widths, text sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, SOFT, RULE, GRID, PLAIN = "#ffffff", "#1c2128", "#57606a", "#d0d7de", "#e7eaee", "#444c56"
COLOURS = ("#0069b4", "#c8500a", "#00805e", "#9a3f86", "#a87400", "#2b93c6", "#6e5b4b")
"""The colours of series, in the order in which a file has them."""

DPI = 100
"""Pixels of the pages an inch."""

SIZE = (960 / DPI, 330 / DPI)
"""Width and height of a figure on a wide page, in inches."""


def points(pixels: float) -> float:
    """A length on the pages in points, matplotlib's unit of widths and text."""
    return pixels * 72 / DPI


STYLE = {
    "axes.labelcolor": SOFT,
    "axes.labelsize": points(13),
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": points(15),
    "axes.titleweight": 600,
    "font.size": points(13),
    "legend.fontsize": points(13),
    "legend.frameon": False,
    "lines.linewidth": points(2),
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "text.color": INK,
    # A name may contain a dollar sign.
    "text.parse_math": False,
}
"""Settings of matplotlib for what is drawn."""


def dress(ax: Axes) -> None:
    """Gives axes the look: a grid of level lines, and a base line alone."""
    ax.set_facecolor(PAPER)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=GRID, linewidth=points(1))
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.spines["bottom"].set_color(RULE)
    ax.tick_params(color=RULE, labelcolor=SOFT, labelsize=points(13))
    ax.tick_params(axis="y", length=0)


def towards_ink(colour: str) -> str:
    """The darker colour of a series' expected values: three fifths of it ink."""
    parts = [(int(colour[at : at + 2], 16), int(INK[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(0.4 * own + 0.6 * ink):02x}" for own, ink in parts)
