"""The example notebook runs."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient.client
import nbformat.v4
import pytest

PACKAGE = Path(__file__).parents[1]


def test_the_example_runs_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    file = PACKAGE / "examples" / "results.ipynb"
    notebook = nbformat.v4.reads(file.read_text())
    assert not any(cell.get("outputs") for cell in notebook.cells), f"{file} is kept without its output"
    nbclient.client.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(file.parent)}}).execute()
    kinds = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2 and kinds.count("text/html") >= 6, kinds
