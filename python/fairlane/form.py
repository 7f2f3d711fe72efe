"""The form of a result file, as ``docs/reference/result-file.md`` describes it, and how JSON is read into it.

A number that was not measured is ``null`` in the file and NaN here. Keys that this version does not know are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .stats import finite

SCHEMA = "fairlane-result/1"
"""The schema of result files that this version reads."""

Points = NDArray[np.float64]
"""Samples: a row ``[x, value]`` for each, in the units of their series."""


class Error(ValueError):
    """A file, or a daemon's answer, that cannot be read: says which, the place in it, and what is wrong."""


class Wrong(Exception):
    """What is wrong at a place such as ``series[2].points[7]``; the caller knows the file."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)


@dataclass(frozen=True)
class Axis:
    """The quantity of an axis, and its unit; the unit of a pure number is empty."""

    name: str
    unit: str


@dataclass(frozen=True, eq=False)
class Series:
    """The raw samples of one quantity.

    ``group`` is its subject, such as a guest: the name in legends. ``unit`` is that of the values, ``x`` the quantity
    along which they were taken. ``role`` says whether they were measured, or expected from a policy or model.
    """

    name: str
    unit: str
    x: Axis
    points: Points
    group: str | None = None
    role: Literal["measured", "expected"] = "measured"

    @property
    def label(self) -> str:
        """Its name in legends."""
        return self.name if self.group is None else self.group

    @property
    def values(self) -> NDArray[np.float64]:
        """The values that were measured, in order."""
        values: NDArray[np.float64] = self.points[:, 1]
        return finite(values)

    @property
    def in_order(self) -> Points:
        """Its samples in the order of x."""
        points: Points = self.points[np.argsort(self.points[:, 0], kind="stable")]
        return points


@dataclass(frozen=True)
class Mark:
    """A labelled line across a plot: upright at ``x``, or level at ``y``, in the axis' unit."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class Figure:
    """A plot of some series of the file. Labels are quantities without their units."""

    title: str
    kind: Literal["lines", "means", "bars", "cdf", "points", "heat"]
    series: list[str]
    caption: str = ""
    x_label: str = ""
    y_label: str = ""
    categories: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class Metric:
    """A number in its unit, with its 95% interval and the samples that both are computed from."""

    value: float
    unit: str
    n: int
    estimate: Literal["given", "median", "mean", "mean_student"]
    ci95: tuple[float, float] | None = None
    samples: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Claim:
    """A claim made before the measurement, and whether the data support it."""

    about: Literal["fairlane", "source"]
    source: str
    text: str
    expected: str
    measured: str
    holds: bool
    ours: str | None = None
    open: Literal["undecided", "not_measured"] | None = None
    figure: str | None = None


@dataclass(frozen=True)
class Source:
    """A published experiment: the place in the publication, and its figure in words."""

    name: str
    figure: str


@dataclass(frozen=True)
class Host:
    """The computer of a run: kernel release, processor, logical processors, memory in bytes, versions by name."""

    kernel: str
    cpu: str
    cores: int
    memory: int
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A result file."""

    schema: str
    experiment: str
    started: str
    host: Host
    source: Source | None = None
    machine: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


def parse(text: str, name: str) -> dict[str, Any]:
    """The JSON object in a text that errors call ``name``."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    def whole(digits: str) -> float:
        return int(digits) if len(digits) <= 20 else float(digits)

    try:
        value = json.loads(text, parse_constant=refuse, parse_int=whole)
    except (ValueError, RecursionError) as error:
        raise Error(f"{name}: not JSON, or cut short: {error}") from None
    if not isinstance(value, dict):
        raise Error(f"{name}: is not a JSON object")
    return value


def read_text(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Error(f"{path}: not UTF-8: {error}") from None


@functools.lru_cache(maxsize=None)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: Any, value: Any, place: str = "") -> Any:
    """A JSON value as a value of a type; raises :class:`Wrong` where it has another form."""
    if kind is Any:
        return value
    if kind is float:
        return math.nan if value is None else float(_expect(value, (int, float), "a number or null", place))
    if kind in _WORDS:
        return _expect(value, kind, _WORDS[kind], place)
    if kind == Points:
        return _points(_expect(value, list, "a list of [x, value]", place), place)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind, _expect(value, dict, "an object", place), place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else decode(inner[0], value, place)
    if origin is Literal:
        if value not in inner:
            raise Wrong(place, f"is {_short(value)}, must be {' or '.join(map(repr, inner))}")
        return value
    if origin is dict:
        items = _expect(value, dict, "an object", place).items()
        return {key: decode(inner[1], each, f"{place}.{key}") for key, each in items}
    each_kind = inner if origin is tuple else inner * len(_expect(value, list, "a list", place))
    if len(_expect(value, list, "a list", place)) != len(each_kind):
        raise Wrong(place, f"has {len(value)} elements, must have {len(each_kind)}")
    decoded = [decode(kind, each, f"{place}[{at}]") for at, (kind, each) in enumerate(zip(each_kind, value))]
    return tuple(decoded) if origin is tuple else decoded


_WORDS = {str: "text", int: "a whole number", bool: "true or false"}


def _expect(value: Any, kind: Any, word: str, place: str) -> Any:
    # True is an int of Python, but no number of JSON.
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise Wrong(place, f"is {_short(value)}, must be {word}")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _object(kind: type, value: dict[str, Any], place: str) -> Any:
    decoded = {}
    for each in dataclasses.fields(kind):
        if each.name in value:
            inside = f"{place}.{each.name}" if place else each.name
            decoded[each.name] = decode(_hints(kind)[each.name], value[each.name], inside)
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise Wrong(place, f"the key `{each.name}` is missing")
    return kind(**decoded)


def _points(points: list[Any], place: str) -> Points:
    for at, point in enumerate(points):
        if type(point) is not list or len(point) != 2:
            raise Wrong(f"{place}[{at}]", f"is {_short(point)}, must be [x, value]")
        x, value = point
        if type(x) not in (int, float):
            raise Wrong(f"{place}[{at}][0]", f"is {_short(x)}, must be a number; only the value may be null")
        if value is not None and type(value) not in (int, float):
            raise Wrong(f"{place}[{at}][1]", f"is {_short(value)}, must be a number or null")
    return np.array(points, dtype=np.float64).reshape(-1, 2)
