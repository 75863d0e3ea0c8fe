"""The texts of an answer with the activations of their tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from steerserve import messages as m
from steerserve.control.inference.positions import TextWithReadings, paired, unpaired
from steerserve.errors import Refusal


def piece(text: str, choice: int = 0, finish: str | None = None) -> m.Piece:
    return m.Piece(1, choice, text, 1, finish)


def read(*positions: int, choice: int = 0) -> m.Activated:
    return m.Activated(1, [m.Reading(at, at, []) for at in positions], choice)


async def sent(
    events: Sequence[m.Outcome], error: Exception | None = None
) -> AsyncIterator[m.Outcome]:
    for event in events:
        yield event
    if error is not None:
        raise error


def short(one: TextWithReadings) -> tuple[int, str | None, list[int]]:
    text = one.piece.text if isinstance(one.piece, m.Piece) else one.piece and "scored"
    return one.choice, text, [reading.position for reading in one.readings]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [read(0, 1), piece("a"), read(2), piece("b"), read(3), piece("c", finish="length")],
            [(0, None, [0, 1]), (0, "a", [2]), (0, "b", [3]), (0, "c", [])],
        ),
        (
            [piece("a"), piece("b"), read(3), piece("", finish="stop")],
            [(0, "a", []), (0, "b", [3]), (0, "", [])],
        ),
        ([read(), piece("a", finish="stop")], [(0, "a", [])]),
        (
            [read(1), m.Scored(1, 0, m.TokenScore(5, "x", -1.0), [])],
            [(0, None, [1]), (0, "scored", [])],
        ),
        (
            [
                piece("a"),
                piece("x", 1),
                read(9, choice=1),
                piece("y", 1, "stop"),
                read(2),
                piece("b", 0, "stop"),
            ],
            [(1, "x", [9]), (1, "y", []), (0, "a", [2]), (0, "b", [])],
        ),
    ],
    ids=["all positions", "some positions", "one token", "a score", "two choices"],
)
async def test_a_piece_comes_with_the_readings_of_its_token(
    events: list[m.Outcome], expected: list[tuple[int, str | None, list[int]]]
) -> None:
    assert [short(one) async for one in paired(sent(events))] == expected


async def test_a_stream_that_fails_gives_the_pieces_held_back_before_its_error() -> None:
    events = paired(sent([piece("a"), piece("x", 1)], Refusal("INTERNAL_ERROR", "no more")))
    assert [short(await anext(events)) for _ in range(2)] == [(0, "a", []), (1, "x", [])]
    with pytest.raises(Refusal):
        await anext(events)


async def test_unpaired_pieces_wait_for_nothing() -> None:
    events = [piece("a"), read(2), piece("b", finish="stop")]
    assert [short(one) async for one in unpaired(sent(events))] == [
        (0, "a", []),
        (0, None, [2]),
        (0, "b", []),
    ]
