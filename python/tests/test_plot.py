"""Figures show what the report's own SVG files show."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

import fairlane
from fairlane import Figure, theme
from fairlane.label import number, quantity, shorten

# Between them: every kind, marks of both directions, expected values, two legends' rows, gaps.
RUNS = ("demo", "bench", "lab/alltoall", "receive-shares/fairlane.json", "xen/isolation-overactive-fairlane")


@pytest.fixture(scope="module")
def drawings(results: Path, command: str, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Figure, Any, Any]]:
    """A figure, its drawing by this package, and its SVG, for each figure of some results."""
    found = []
    for name in RUNS:
        out = tmp_path_factory.mktemp("figures")
        words = [command, "report", str(results / name), "--out", str(out / "page.html"), "--figures", str(out)]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        run = fairlane.read(results / name)
        by_title = {}
        for file in out.glob("*.svg"):
            root = ElementTree.fromstring(file.read_text().replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))
            by_title[root.findtext("title")] = root
        found += [(figure, ax, by_title[figure.title]) for figure, ax in zip(run.figures, run.plot())]
        plt.close("all")
    return found


def test_ticks_names_and_numbers_are_those_of_the_report(drawings: list[tuple[Figure, Any, Any]]) -> None:
    kinds = Counter(figure.kind for figure, _, _ in drawings)
    assert kinds.keys() == {"lines", "means", "bars", "cdf"}, kinds
    for figure, ax, svg in drawings:
        x_name, x_ticks = ax.get_xlabel(), [text.get_text() for text in ax.get_xticklabels()]
        legend = [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []
        shown = [*x_ticks, *(text.get_text() for text in ax.get_yticklabels()), x_name, *legend]
        shown += [text.get_text() for text in ax.texts]
        expected = Counter(text for text in map(own_text, svg.iter("text")) if text)
        assert Counter(filter(None, shown)) == expected, figure.title


def own_text(element: ElementTree.Element) -> str:
    """The text of an element, without its tooltip."""
    return (element.text or "") + "".join(child.tail or "" for child in element)


def test_intervals_are_where_the_report_draws_them(drawings: list[tuple[Figure, Any, Any]]) -> None:
    compared = 0
    for figure, ax, svg in drawings:
        if figure.kind != "bars":
            continue
        drawn = [
            line.get_ydata() for line in ax.lines if line.get_marker() == "_" and np.isfinite(line.get_ydata()).all()
        ]
        ticks = [line for line in svg.iter("line") if line.get("class") == "grid"]
        pixels = [float(line.get("y1", "")) for line in ticks]
        scale = np.poly1d(np.polyfit(pixels, ax.get_yticks(), 1))
        paths = [path.get("d", "") for path in svg.iter("path") if path.get("class") == "whisker"]
        ends = [tuple(map(float, re.findall(r"^M\S+ (\S+)V([^M]+)", path)[0])) for path in paths]
        assert len(ends) == len(drawn) > 0
        expected = sorted((scale(low), scale(high)) for low, high in ends)
        # The report rounds to a tenth of a pixel.
        tenth = abs(scale(0.1) - scale(0))
        assert np.allclose(sorted(map(tuple, drawn)), expected, rtol=0, atol=tenth), figure.title
        compared += len(ends)
    assert compared > 10


def test_colours_are_those_of_the_pages(drawings: list[tuple[Figure, Any, Any]], results: Path) -> None:
    sheet = (results.parents[1] / "crates" / "report" / "src" / "plot" / "theme.css").read_text()
    light = dict(re.findall(r"--(\w+): (#\w{6})", sheet.split("@media")[0]))
    assert theme.COLOURS == tuple(light[f"c{at}"] for at in range(7))
    own = (theme.PAPER, theme.INK, theme.SOFT, theme.RULE, theme.GRID, theme.PLAIN)
    assert own == tuple(light[name] for name in ("paper", "ink", "soft", "rule", "grid", "plain"))
    for figure, ax, svg in drawings:
        if figure.kind not in ("lines", "means"):
            continue
        names = {text.get_text(): to_hex(text.get_color()) for text in ax.texts if text.get_weight() == 600}
        ends = {own_text(text): text.get("class", "") for text in svg.iter("text") if "end" in text.get("class", "")}
        assert names == {name: light[kind.split()[1]] for name, kind in ends.items()}, figure.title


def test_numbers_are_written_as_on_the_pages() -> None:
    cases = {
        0.0: "0", -0.0: "0", 24.9871: "24.99", 23_237.4: "23,237", 0.012_345: "0.01235", -1234.6: "-1235",
        999.96: "1000", 12_345_678.0: "12,345,678", 1e300: "1e300", 1.5e-9: "1.5e-9", float("inf"): "∞",
    }  # fmt: skip
    assert {value: number(value) for value in cases} == cases
    assert (number(float("nan")), quantity(50, "Mbit/s"), quantity(0.5, "")) == ("-", "50 Mbit/s", "0.5")
    assert (shorten("guest", 5), shorten("guests", 5)) == ("guest", "gues…")


def test_a_title_that_no_figure_has_is_an_error(results: Path) -> None:
    run = fairlane.read(results / "lab" / "alltoall")
    with pytest.raises(KeyError, match="no figure has the title 'x'; there are 'Time of an exchange'"):
        run.plot("x")
    axes = plt.subplots(1, 2)[1]
    assert run.plot(ax=axes[1]) == [axes[1]]
    with pytest.raises(ValueError, match="8 figures do not fit into one ax"):
        fairlane.read(results / "demo").plot(ax=axes[0])
    plt.close("all")


def test_cells_have_the_mean_of_their_samples(results: Path, tmp_path: Path) -> None:
    content = json.loads((results / "lab" / "alltoall" / "result.json").read_text())
    rows = {"low": [[0, 1], [0, 3], [1, None]], "high": [[0, 10], [1, 6]]}
    axis = {"name": "x", "unit": ""}
    content["series"] = [{"name": name, "unit": "", "x": axis, "points": points} for name, points in rows.items()]
    content["figures"] = [{"title": "a", "kind": "heat", "series": list(rows), "categories": ["left", "right"]}]
    content["claims"] = []
    (tmp_path / "result.json").write_text(json.dumps(content))
    [ax] = fairlane.read(tmp_path).plot()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["left", "right"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["low", "high"]
    assert ax.collections[0].get_array().reshape(-1).tolist() == [2, None, 10, 6]
    plt.close(ax.figure)


@pytest.mark.parametrize("kind", ["lines", "means", "bars", "cdf", "points", "heat"])
def test_any_samples_are_drawn(results: Path, tmp_path: Path, kind: str) -> None:
    content = json.loads((results / "lab" / "alltoall" / "result.json").read_text())
    samples = {
        "none": [],
        "$one_$": [[0, None]],
        "alone": [[0, 1], [1, None], [2, 3], [3, None]],
        "huge": [[0, 1e308], [0, -1e308], [1e308, 1], [-1e308, 10**30]],
        "tiny": [[0, 5e-324], [1e-320, 1e-310], [1, 0]],
        "close": [[0, 1e9], [0, 1e9 + 1e-6]],
    }
    axis = {"name": "$x$", "unit": ""}
    content["series"] = [{"name": n, "unit": "s", "x": axis, "points": points} for n, points in samples.items()]
    content["figures"] = [{"title": name, "kind": kind, "series": [name]} for name in samples]
    content["figures"] += [{"title": "nothing", "kind": kind, "series": []}]
    content["figures"] += [{"title": "all", "kind": kind, "series": list(samples)}]
    content["claims"] = []
    (tmp_path / "result.json").write_text(json.dumps(content))
    for ax in fairlane.read(tmp_path).plot():
        empty = "nothing was measured" in [text.get_text() for text in ax.texts]
        assert empty == (ax.get_title(loc="left") in ("none", "$one_$", "nothing"))
        assert kind == "heat" or 2 <= len(ax.get_yticks()) <= 16
        if ax.get_title(loc="left") in ("huge", "all"):
            ax.figure.canvas.draw()
        plt.close(ax.figure)
