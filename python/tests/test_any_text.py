"""Whatever is in a file: it is read, or refused with the file's name."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import fairlane

DATA = Path(__file__).parent / "data"
WORDS = ["null", "-1", "1e999", '"x"', "[]", "{}", "true", '"', "\\", "\0", "1" * 5000, "# EOF\n", 'le="x"', "NaN", ""]


@pytest.mark.parametrize(
    ("read", "file"),
    [
        (fairlane.read_metrics, DATA / "metrics.txt"),
        (fairlane.read_snapshot, DATA / "snapshot.json"),
        (fairlane.read_history, DATA / "history.json"),
        (fairlane.read, Path(__file__).parents[2] / "docs" / "results" / "limit" / "result.json"),
    ],
)
def test_any_text_is_read_or_refused(tmp_path: Path, read: Any, file: Path) -> None:
    text = file.read_text()
    seeded = random.Random(1)
    refused = 0
    for _ in range(60):
        at = seeded.randrange(len(text))
        end = at + seeded.choice([0, 1, 3, 20, len(text)])
        (tmp_path / "any").write_text(text[:at] + seeded.choice([*WORDS, text[at : at + 9]]) + text[end:])
        try:
            read(tmp_path / "any")
        except fairlane.Error as error:
            assert str(error).startswith(str(tmp_path / "any"))
            refused += 1
    assert 20 < refused
