"""A running daemon's figures: its snapshot, its history, and captures of its metrics.

Each function reads a file, or asks a daemon if it is given an address such as ``http://127.0.0.1:9477``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from .form import Error, Wrong, decode, parse, read_text

# Some versions of the library have no types.
_families: Callable[[str], Iterator[Metric]] = text_string_to_metric_families
# Seconds until a daemon that does not answer is given up.
_TIMEOUT = 10


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All links, tenants and vifs at one moment, with the rates of about the second before it.

    A row each, by name. Rates are bits a second, sizes bytes, times nanoseconds, shares 0 to 1. The columns are the
    fields that ``docs/reference/control-protocol.md`` and ``docs/reference/metrics.md`` describe; those of an inner
    object have its name and a dot before theirs, as ``receive.weight`` and ``drops.spoofed_mac``.
    """

    time: float
    """Seconds since the backend started."""
    links: pd.DataFrame
    tenants: pd.DataFrame
    vifs: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Steps:
    """The figures of one link, tenant or vif, step by step; the index is the step's end in seconds since the start."""

    figures: pd.DataFrame
    """``sent_rate`` and ``received_rate`` (bits a second), ``share`` and ``due`` (0 to 1), ``drop_rate`` (frames a
    second)."""
    waits: pd.DataFrame
    """How many frames waited for service less than each column's name in seconds, and not less than the one before."""
    rx_waits: pd.DataFrame
    """The same of frames that waited for room in the guest's ring."""


@dataclass(frozen=True, eq=False)
class History:
    """The history of one link, tenant or vif."""

    recent: Steps
    """Ten minutes in steps of five seconds."""
    day: Steps
    """24 hours in steps of six minutes."""


def read_snapshot(source: str | os.PathLike[str], token: str | None = None) -> Snapshot:
    """Reads the answer to ``/api/v1/snapshot``.

    ``token`` is what the policy's ``metrics_token`` says, for a daemon that asks for it. Raises :class:`~fairlane.Error`
    for an answer of another form, and OSError if there is none.
    """
    text, name = _text(source, "/api/v1/snapshot", token)
    content = parse(text, name)
    try:
        time: float = decode(int, _key(content, "time"), "time")
        frames = [_frame(content, part) for part in ("links", "tenants", "vifs")]
    except Wrong as wrong:
        raise Error(f"{name}: {wrong}") from None
    return Snapshot(time / 1e9, *frames)


def read_history(
    source: str | os.PathLike[str],
    *,
    vif: str | None = None,
    tenant: str | None = None,
    link: str | None = None,
    token: str | None = None,
) -> History:
    """Reads the answer to ``/api/v1/history``. Of a daemon, one of ``vif``, ``tenant`` and ``link`` says whose.

    Errors and ``token`` are as of :func:`read_snapshot`.
    """
    whose = {"vif": vif, "tenant": tenant, "link": link}
    query = urlencode({kind: name for kind, name in whose.items() if name is not None})
    text, name = _text(source, f"/api/v1/history?{query}", token)
    content = parse(text, name)
    try:
        recent, day = (_steps(decode(dict[str, Any], _key(content, part), part), part) for part in ("recent", "day"))
    except Wrong as wrong:
        raise Error(f"{name}: {wrong}") from None
    return History(recent, day)


def read_metrics(source: str | os.PathLike[str], token: str | None = None) -> pd.DataFrame:
    """Reads ``/metrics`` in OpenMetrics text, or a file of several such answers one after the other.

    A row a sample: ``scrape`` (its answer, counted from 0), ``metric``, ``type``, ``value``, and a column for each
    label, NaN where the metric does not have it. Units are in the names; rates are **bytes** a second. Errors and
    ``token`` are as of :func:`read_snapshot`.
    """
    text, name = _text(source, "/metrics", token)
    *scrapes, rest = text.replace("\r\n", "\n").split("# EOF\n")
    if rest.strip() or not scrapes:
        raise Error(f"{name}: cut short: an answer ends with a line `# EOF`, the last one here does not")
    return pd.DataFrame([row for nth, scrape in enumerate(scrapes) for row in _rows(nth, scrape, name)])


def _text(source: str | os.PathLike[str], path: str, token: str | None) -> tuple[str, str]:
    """A file's text or a daemon's answer, and the name that errors call it by."""
    address = os.fspath(source)
    if not address.startswith(("http://", "https://")):
        return read_text(Path(address)), address
    url = address.rstrip("/") + path
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=_TIMEOUT) as answer:
            return answer.read().decode("utf-8", "replace"), url
    except HTTPError as error:
        raise Error(f"{url}: {error.code} {error.reason}: {error.read().decode('utf-8', 'replace').strip()}") from None
    except (URLError, HTTPException) as error:
        raise ConnectionError(f"{url}: {error}") from None


def _key(content: dict[str, Any], key: str, place: str = "") -> Any:
    if key not in content:
        raise Wrong(place, f"the key `{key}` is missing")
    return content[key]


def _frame(content: dict[str, Any], part: str) -> pd.DataFrame:
    """A row for each object of a list, by its name."""
    rows = decode(list[dict[str, Any]], _key(content, part), part)
    for at, row in enumerate(rows):
        decode(str, _key(row, "name", f"{part}[{at}]"), f"{part}[{at}].name")
    if not rows:
        return pd.DataFrame(index=pd.Index([], name="name", dtype=object))
    frame = pd.json_normalize(rows).set_index("name")
    # An inner object that is null in one row, and has columns of its own for another.
    inner = [column for column in frame.columns if any(other.startswith(f"{column}.") for other in frame.columns)]
    frame = frame.drop(columns=inner)
    frame = frame.where(frame.notna(), np.nan).infer_objects()
    # Reasons that did not occur are omitted.
    counts = [column for column in frame.columns if ".drops." in f".{column}" or ".fallbacks." in column]
    return frame.fillna({column: 0 for column in counts})


def _steps(columns: dict[str, Any], place: str) -> Steps:
    lists = {name: decode(list[Any], _key(columns, name, place), f"{place}.{name}") for name in (*_FIGURES, *_WAITS)}
    index = pd.Index(decode(list[float], _key(columns, "end", place), f"{place}.end"), name="end", dtype=np.float64)
    for name, values in lists.items():
        if len(values) != len(index):
            raise Wrong(f"{place}.{name}", f"has {len(values)} elements, must have {len(index)} as `end` has")
    figures = {name: decode(list[float], lists[name], f"{place}.{name}") for name in _FIGURES}
    waits = [
        _waits(decode(list[list[float]], lists[name], f"{place}.{name}"), index, f"{place}.{name}") for name in _WAITS
    ]
    return Steps(pd.DataFrame(figures, index=index, dtype=np.float64), *waits)


_FIGURES = ("sent_rate", "received_rate", "share", "due", "drop_rate")
_WAITS = ("waits", "rx_waits")


def _waits(rows: list[list[float]], index: pd.Index, place: str) -> pd.DataFrame:
    """Counts of waits; the first column is below 1.024 us, each other below four times the one before."""
    count = len(rows[0]) if rows else 1
    for at, row in enumerate(rows):
        if len(row) != count:
            raise Wrong(f"{place}[{at}]", f"has {len(row)} elements, must have {count} as the first has")
    below = [1.024e-6 * 4**k for k in range(count - 1)] + [np.inf]
    return pd.DataFrame(rows, index=index, columns=pd.Index(below, name="below"), dtype=np.float64)


def _rows(nth: int, scrape: str, name: str) -> Iterator[dict[str, Any]]:
    try:
        for family in _families(scrape + "# EOF\n"):
            for sample in family.samples:
                row = {"scrape": nth, "metric": sample.name, "type": family.type, "value": float(sample.value)}
                yield {**row, **sample.labels}
    except ValueError as error:
        raise Error(f"{name}: answer {nth}: not OpenMetrics text: {error}") from None
