"""The texts of an answer with the activations of their tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from steerserve import messages as m
from steerserve.control.inference.positions import with_own_chunks
from steerserve.errors import Refusal
from steerserve.parts.activations.form import ACTIVATIONS, Reading
from steerserve.parts.part import pack


def piece(
    text: str, choice: int = 0, finish: str | None = None, read: Sequence[int] | None = None
) -> m.Piece:
    """A piece that comes with the readings of some positions; with None there are none, and nothing of the part."""
    return m.Piece(1, choice, text, 1, finish, parts=of_positions(read))


def of_positions(read: Sequence[int] | None) -> dict[str, msgspec.Raw]:
    if read is None:
        return {}
    return {ACTIVATIONS.name: pack([Reading(at, at, []) for at in read])}


async def sent(
    events: Sequence[m.Outcome], error: Exception | None = None
) -> AsyncIterator[m.Outcome]:
    for event in events:
        yield event
    if error is not None:
        raise error


LATE = (ACTIVATIONS.name,)


def short(one: m.Piece | m.Scored) -> tuple[int, str | None, list[int]]:
    text = (one.text or one.finish) if isinstance(one, m.Piece) else "scored"
    return one.choice, text, [reading.position for reading in ACTIVATIONS.read(one.parts) or ()]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [
                piece("a", read=[0, 1]),
                piece("b", read=[2]),
                piece("c", finish="length", read=[3]),
            ],
            [(0, None, [0, 1]), (0, "a", [2]), (0, "b", [3]), (0, "c", [])],
        ),
        (
            [piece("a"), piece("b"), piece("", finish="stop", read=[3])],
            [(0, "a", []), (0, "b", [3]), (0, "stop", [])],
        ),
        ([piece("a", finish="stop")], [(0, "a", [])]),
        (
            [piece("a"), piece("", read=[2]), piece("b", finish="length", read=[3])],
            [(0, "a", [2]), (0, None, [3]), (0, "b", [])],
        ),
        (
            [m.Scored(1, 0, m.TokenScore(5, "x", -1.0), [], parts=of_positions([1]))],
            [(0, None, [1]), (0, "scored", [])],
        ),
        (
            [
                piece("a"),
                piece("x", 1),
                piece("y", 1, "stop", [9]),
                piece("b", 0, "stop", [2]),
            ],
            [(1, "x", [9]), (1, "y", []), (0, "a", [2]), (0, "b", [])],
        ),
    ],
    ids=["all positions", "some positions", "one token", "no text", "a score", "two choices"],
)
async def test_a_piece_comes_with_the_readings_of_its_token(
    events: list[m.Outcome], expected: list[tuple[int, str | None, list[int]]]
) -> None:
    assert [short(one) async for one in with_own_chunks(sent(events), LATE)] == expected


async def test_a_stream_that_fails_gives_the_pieces_held_back_before_its_error() -> None:
    error = Refusal("INTERNAL_ERROR", "no more")
    events = with_own_chunks(sent([piece("a"), piece("x", 1)], error), LATE)
    assert [short(await anext(events)) for _ in range(2)] == [(0, "a", []), (1, "x", [])]
    with pytest.raises(Refusal):
        await anext(events)
