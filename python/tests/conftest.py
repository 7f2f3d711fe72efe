"""What tests share: Fairlane's own results, and its command."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib
import pytest

import fairlane

matplotlib.use("agg")

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def results() -> Path:
    """The directory of the results that the documents show."""
    return REPOSITORY / "docs" / "results"


@pytest.fixture(scope="session")
def runs(results: Path) -> list[fairlane.Result]:
    """All of them."""
    return [fairlane.read(path) for path in sorted(results.rglob("*.json"))]


@pytest.fixture(scope="session")
def command() -> str:
    """The command fairlane; FAIRLANE says where it is."""
    path = os.environ.get("FAIRLANE", str(REPOSITORY / "target" / "debug" / "fairlane"))
    assert os.access(path, os.X_OK), f"{path} is missing: cargo build --package fairlane, or set FAIRLANE to its path"
    return path
