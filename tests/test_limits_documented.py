"""The table of bounds is whole, its page is fresh, and the tests that it names exist."""

from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path

from docs import generate

from steerserve.rules import bounds
from steerserve.settings import Settings

ROOT = Path(__file__).parent.parent
NO_ROW = {"TURNS_SHOWN"}
"""Constants of the rule itself."""


def test_the_page_of_limits_is_what_the_table_says() -> None:
    stored = (generate.FOLDER / "limits.md").read_text(encoding="utf-8")
    assert stored == generate.limits_page(), "run `make docs`"
    for group in {row.group for row in bounds.BOUNDS}:
        assert f"<!-- bounds: {group} -->" in stored


def test_every_constant_has_its_unit_and_is_in_a_row() -> None:
    body = ast.parse(inspect.getsource(bounds)).body
    constants: set[str] = set()
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Final":
            name = ast.unparse(node.target)
            constants.add(name)
            assert isinstance(after, ast.Expr), f"{name} needs a docstring that names its unit"
    named = {found[1] for row in bounds.BOUNDS for found in generate._NAME.finditer(row.bound)}
    assert constants - NO_ROW <= named, "constants that are in no row"
    settings = {name.upper() for name in Settings.model_fields}
    assert named <= constants | settings, "rows that name neither a constant nor a setting"


def test_the_tests_that_rows_name_exist() -> None:
    missing = []
    for row in bounds.BOUNDS:
        path, _, name = row.test.partition("::")
        wanted = f"def {name}(" if path.endswith(".py") else name
        if not (ROOT / path).is_file() or wanted not in (ROOT / path).read_text("utf-8"):
            missing.append(row.test)
    assert not missing
