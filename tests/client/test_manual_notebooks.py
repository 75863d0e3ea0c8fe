"""The notebooks of the manual: run as they are kept, and shown as pages of the site."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.notebooks.page import page

from tests.processes import run_program
from tests.service import Running

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def forms(notebook: Path) -> list[tuple[str, list[list[str]]]]:
    """The cells, and for each output its kind and the forms that it has."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return [
        (
            "".join(cell["source"]),
            [[one["output_type"], *sorted(one.get("data", ()))] for one in cell.get("outputs", ())],
        )
        for cell in cells
    ]


def test_the_notebooks_run_and_have_kept_what_their_cells_show(
    sea: Running, tmp_path: Path
) -> None:
    own = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    ran = run_program(
        *("-m", "tools.notebooks", "--url", sea.url, "--into", str(tmp_path)),
        **own,
        PYTHONPATH=":".join(sys.path),
    )
    assert ran.returncode == 0, ran.stderr
    assert KEPT
    for notebook in KEPT:
        assert forms(tmp_path / notebook.name) == forms(notebook), "`make notebooks` keeps them"


@pytest.mark.parametrize("notebook", KEPT, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_its_outputs(notebook: Path) -> None:
    shown = page(notebook.read_text())
    assert shown.startswith("# ")
    for source, outputs in forms(notebook):
        assert source in shown
        assert "<script" not in source or not outputs
    assert "<div><table>" in shown
    assert "<script" not in shown


def test_a_fence_is_longer_than_those_inside_it() -> None:
    cell = {"cell_type": "code", "source": ["x = '```'"], "outputs": []}
    assert page(json.dumps({"cells": [cell]})) == "````python\nx = '```'\n````\n"


def test_the_first_comparison_shows_the_sea_on_the_steered_side_only() -> None:
    cells = json.loads((ROOT / "docs" / "notebooks" / "first-look.ipynb").read_text())["cells"]
    (compared,) = [one for one in cells if "client.compare" in "".join(one["source"])]
    shown = "".join(compared["outputs"][0]["data"]["text/plain"])
    plain, steered = re.findall(r"text='(.*?)', finish_reason", shown)
    assert "ocean" in steered
    assert not {"sea", "ocean", "ship", "beach", "coast"} & set(re.findall(r"\w+", plain))
