"""The resident model has one writer: the room that holds the slot."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest

from steerserve.control.residency.occupant import Occupant
from tests import ROOT

SOURCE = ROOT / "src" / "steerserve"
ROOM = SOURCE / "control" / "residency"
FIELDS = {field.name for field in fields(Occupant)}


def test_only_the_room_imports_the_model_that_can_be_written() -> None:
    importing = {
        path
        for path in SOURCE.rglob("*.py")
        if "steerserve.control.residency.occupant" in path.read_text(encoding="utf-8")
    }
    assert importing
    assert {path for path in importing if ROOM not in path.parents} == set()


@pytest.mark.parametrize("name", sorted({path.name for path in ROOM.glob("*.py")} - {"slot.py"}))
def test_the_fields_are_assigned_by_handlers_and_its_own_methods_only(name: str) -> None:
    assigned = [
        f"{name}:{target.lineno}: {ast.unparse(target)}"
        for node in ast.walk(ast.parse((ROOM / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for group in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(group)
        if isinstance(target, ast.Attribute)
        and target.attr in FIELDS
        and isinstance(target.ctx, ast.Store)
        and ast.unparse(target.value) != "self"
    ]
    assert assigned == []
