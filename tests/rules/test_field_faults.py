"""What people read about a wrong field."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from steerserve.rules.field_faults import described


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Named:
    name: str

    @field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        raise ValueError("no color has this name")


@pytest.mark.parametrize(
    ("kind", "value", "clause"),
    [
        (Annotated[int, Field(strict=True)], "5", "must be a whole number"),
        (int, 1.5, "must be a whole number"),
        (int, "five", "must be a whole number"),
        (int, "9" * 5000, "has too many digits"),
        (float, [], "must be a number"),
        (float, "x", "must be a number"),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "must be a finite number"),
        (bool, "perhaps", "must be true or false"),
        (bool, [], "must be true or false"),
        (str, 5, "must be a string"),
        (list[int], "x", "must be a list"),
        (dict[str, int], [], "must be an object"),
        (Literal["text"], "image_url", "must be 'text'"),
        (Literal["a", "b", "c"], "d", "must be 'a', 'b' or 'c'"),
        (Color, "green", "must be 'red' or 'blue'"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1"),
        (Annotated[float, Field(le=2)], 2.1, "must be at most 2"),
        (Annotated[float, Field(gt=0)], 0, "must be above 0"),
        (Annotated[float, Field(lt=5)], 5, "must be below 5"),
        (Annotated[str, Field(min_length=1)], "", "must not be empty"),
        (Annotated[str, Field(min_length=2)], "", "must have at least 2 characters"),
        (Annotated[str, Field(max_length=1)], "ab", "must have at most 1 character"),
        (Annotated[list[int], Field(min_length=1)], [], "must not be empty"),
        (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "must have at most 2 items"),
        (Annotated[str, Field(pattern="^a+$")], "b", "must match the pattern ^a+$"),
        (Named, {}, "is required"),
        (Named, {"name": "x"}, "no color has this name"),
        (None, 5, "must be null"),
        (datetime, "yesterday", "must be a time, as 2026-01-31T12:00:00Z"),
        (bytes, 5, "must be a valid bytes"),
    ],
)
def test_a_fault_is_described_in_plain_words(kind: Any, value: object, clause: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    (fault,) = refused.value.errors()
    assert described(fault) == clause
