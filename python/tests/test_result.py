"""Result files as data frames, and wrong ones as sentences."""

from __future__ import annotations

import json
import operator
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fairlane


def test_every_result_of_the_documents_is_read(runs: list[fairlane.Result]) -> None:
    assert len(runs) > 90
    for run in runs:
        content = json.loads(run.path.read_text())
        assert run.experiment == content["experiment"] and run.started == pd.Timestamp(content["started"])
        assert run.settings == content["settings"] and len(run.figures) == len(content["figures"])
        assert len(run.samples) == sum(len(series["points"]) for series in content["series"])
        assert list(run.metrics.index) == list(content["metrics"])
        assert list(run.claims["verdict"] == "holds") == [claim["holds"] for claim in content["claims"]]


def test_frames_have_what_the_file_has(results: Path) -> None:
    run = fairlane.read(results / "demo")
    series = json.loads((results / "demo" / "result.json").read_text())["series"]
    for each in series:
        rows = run.samples[run.samples["series"] == each["name"]]
        points = np.array(each["points"], dtype=float)
        assert np.array_equal(rows[["x", "value"]].to_numpy(), points, equal_nan=True)
        assert set(rows["unit"]) == {each["unit"]} and set(rows["x_unit"]) == {each["x"]["unit"]}
        assert set(rows["group"].dropna()) == {each["group"]} - {None} if "group" in each else set()
        assert set(rows["role"]) == {each.get("role", "measured")}
    assert str(run) == "<demo, 2026-11-23 03:58 UTC: 33 series, 28 metrics, 16 of 16 claims hold>" and run.holds


def test_claims_have_a_verdict(results: Path, tmp_path: Path) -> None:
    def claims(content: dict[str, Any]) -> None:
        first = content["claims"][0]
        left: list[dict[str, object]] = [
            {"holds": False, "open": "undecided"},
            {"holds": False, "open": "not_measured"},
            {"holds": False},
        ]
        content["claims"] = [first, *({**first, **each} for each in left)]

    run = fairlane.read(changed(results, tmp_path, claims))
    assert list(run.claims["verdict"]) == ["holds", "undecided", "not measured", "does not hold"]


def test_ratios_are_those_of_the_comparison(results: Path, command: str) -> None:
    base, other = results / "accept-rate" / "box", results / "accept-rate" / "kvm-fairlane"
    words = [command, "compare", str(base), str(other), "--json"]
    compared = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)["metrics"]
    run = fairlane.read(other)
    ratios = run.ratio_to(fairlane.read(base))
    count = 0
    for name, (value, low, high) in ratios.iterrows():
        expected = compared.get(f"kvm-fairlane/{name}: ratio")
        # The comparison takes means.
        if expected and run.metrics.loc[name, "estimate"] == "mean_student":
            assert value == pytest.approx(expected["value"])
            assert np.isnan(low) or low <= value <= high
            count += low < high
    assert count > 10
    assert run.ratio_to(run)["value"].dropna().eq(1).all()


def test_results_are_found_below_directories(results: Path) -> None:
    below = results / "accept-rate"
    found = fairlane.find(below, below / "box" / "result.json")
    assert len(found) == 15 and found == sorted(set(found))
    with pytest.raises(FileNotFoundError, match="tenants: holds no result.json"):
        fairlane.find(results / "tenants")
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        fairlane.read(results / "nowhere.json")


def changed(results: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The demo's result with a change, in a file of its own."""
    content = json.loads((results / "demo" / "result.json").read_text())
    change(content)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    return path


WRONG: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    (
        "schema is 'fairlane-result/2'; this version knows 'fairlane-result/1'",
        lambda f: f.update(schema="fairlane-result/2"),
    ),
    ("schema is None", lambda f: f.pop("schema")),
    ("the key `host` is missing", lambda f: f.pop("host")),
    ("host: the key `cpu` is missing", lambda f: f["host"].pop("cpu")),
    ("host.cores: is true, must be a whole number", lambda f: f["host"].update(cores=True)),
    ("started: is 'yesterday', must be a time", lambda f: f.update(started="yesterday")),
    ("experiment: is empty, must name the experiment", lambda f: f.update(experiment="")),
    ("settings: is 3, must be an object", lambda f: f.update(settings=3)),
    ('series[2].points[7]: is "fast", must be [x, value]', lambda f: f["series"][2]["points"].__setitem__(7, "fast")),
    ("series[0].points[1][0]: is null, must be a number", lambda f: f["series"][0]["points"][1].__setitem__(0, None)),
    ('series[0].points[1][1]: is "1", must be a number', lambda f: f["series"][0]["points"][1].__setitem__(1, "1")),
    ("series[1].name: `", lambda f: f["series"][1].update(name=f["series"][0]["name"])),
    ("series[0].role: is \"seen\", must be 'measured' or 'expected'", lambda f: f["series"][0].update(role="seen")),
    ("figures[1].series[0]: there is no series `x`", lambda f: f["figures"][1]["series"].__setitem__(0, "x")),
    ("figures[1].title: `", lambda f: f["figures"][1].update(title=f["figures"][0]["title"])),
    ("figures[0].series[1]: `", lambda f: f["series"][1].update(unit="s")),
    ("figures[0].marks[0]: must be at one number, x or y", lambda f: f["figures"][0].update(marks=[{"text": "?"}])),
    ("metrics.", lambda f: next(iter(f["metrics"].values())).update(ci95=[2, 1])),
    (".n: is 3, but there are", lambda f: metric(f).update(n=3)),
    (".ci95: has 1 elements, must have 2", lambda f: metric(f).update(ci95=[2])),
    ("claims[0].figure: no figure has the title `9`", lambda f: f["claims"][0].update(figure="9")),
]


def metric(content: dict[str, Any]) -> dict[str, Any]:
    """A metric with samples."""
    return next(each for each in content["metrics"].values() if len(each.get("samples", [])) > 3)


@pytest.mark.parametrize(("sentence", "change"), WRONG, ids=[sentence for sentence, _ in WRONG])
def test_a_wrong_file_is_refused_with_its_place(
    results: Path, tmp_path: Path, sentence: str, change: Callable[[dict[str, Any]], object]
) -> None:
    path = changed(results, tmp_path, change)
    with pytest.raises(fairlane.Error) as error:
        fairlane.read(path)
    assert str(error.value).startswith(f"{path}: ") and sentence in str(error.value)


@pytest.mark.parametrize("text", ['{"schema": "fairlane-res', "", "[]", "[" * 100_000, '{"schema": NaN}', "\x00"])
def test_text_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(fairlane.Error, match=r"result.json: (not JSON, or cut short|is not a JSON object)"):
        fairlane.read(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe")
    with pytest.raises(fairlane.Error, match="result.json: not UTF-8"):
        fairlane.read(tmp_path)


def test_bars_without_a_name_are_refused(results: Path, tmp_path: Path) -> None:
    content = json.loads((results / "bench" / "result.json").read_text())
    bars = next(at for at, figure in enumerate(content["figures"]) if figure["kind"] == "bars")
    name = content["figures"][bars]["series"][0]
    next(series for series in content["series"] if series["name"] == name)["points"][0][0] = 77
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(
        fairlane.Error, match=rf"figures\[{bars}\]\.series\[0\]: x = 77 has no name; whole numbers below"
    ):
        fairlane.read(tmp_path)


def test_keys_of_later_versions_are_ignored(results: Path, tmp_path: Path) -> None:
    def later(content: dict[str, Any]) -> None:
        content["later"] = 1
        content["claims"][0]["later"] = 1

    assert fairlane.read(changed(results, tmp_path, later)).holds


def test_a_result_may_be_empty(results: Path, tmp_path: Path) -> None:
    def empty(content: dict[str, Any]) -> None:
        for key in ("series", "figures", "metrics", "claims", "settings"):
            del content[key]

    run = fairlane.read(changed(results, tmp_path, empty))
    assert run.samples.empty and run.metrics.empty and run.claims.empty and run.plot() == [] and run.holds
    assert {"series", "x", "value"} <= set(run.samples.columns) and "verdict" in run.claims.columns


def test_what_the_guide_names_is_there(results: Path) -> None:
    guide = (results.parent / "guide" / "python.md").read_text()
    names = set(re.findall(r"\bfairlane\.((?:stats\.)?[a-zA-Z_]+)", guide)) - {"pip"}
    assert len(names) > 8
    for name in names:
        assert operator.attrgetter(name)(fairlane)
    run = fairlane.read(results / "demo")
    columns = {*run.samples, *run.metrics, *run.claims}
    table = guide[guide.index("| of a result") : guide.index("What was not measured")]
    for name in re.findall(r"`(\w+)[`(]", table):
        assert name in columns or hasattr(run, name), name


def test_the_version_is_that_of_the_program(results: Path) -> None:
    manifest = (results.parents[1] / "Cargo.toml").read_text()
    assert f'\nversion = "{fairlane.__version__}"\n' in manifest
