"""Reading packed tokens, and finding the features of a word in them."""

from __future__ import annotations

import struct

import pytest

from steerserve.rules.sensing.promoting import PromotedTable, promoted_half, promoting, unpacked


def table(rows: list[list[tuple[int, float]]]) -> PromotedTable:
    flat = [one for row in rows for one in row]
    return PromotedTable(
        len(rows[0]),
        struct.pack(f"<{len(flat)}i", *(token for token, _ in flat)),
        struct.pack(f"<{len(flat)}f", *(value for _, value in flat)),
    )


TABLE = table(
    [
        [(7, 4.0), (9, 1.0)],
        [(9, 3.0), (8, 2.0)],
        # their bytes contain the bytes of token 7 across two tokens: 0x0700, 0x00
        [(0x700, 5.0), (0, 0.5)],
    ]
)


@pytest.mark.parametrize(
    ("spellings", "expected"),
    [
        ([[7]], [(0, 4.0)]),
        ([[9]], [(1, 3.0), (0, 1.0)]),
        ([[9, 8]], [(1, 2.0)]),
        ([[9, 8], [9]], [(1, 3.0), (0, 1.0)]),
        ([[5]], []),
        ([[0]], [(2, 0.5)]),
        ([[]], []),
        ([], []),
    ],
)
def test_features_promote_every_token_of_one_spelling(
    spellings: list[list[int]], expected: list[tuple[int, float]]
) -> None:
    assert promoting(TABLE, spellings) == expected
    assert TABLE.features == 3


def test_the_promoted_half_and_both_sides_are_read_back() -> None:
    tokens = struct.pack("<8i", 1, 2, 3, 4, 5, 6, 7, 8)
    values = struct.pack("<8f", 4, 3, -4, -3, 2, 1, -2, -1)
    assert struct.unpack("<4i", promoted_half(tokens, 2)) == (1, 2, 5, 6)
    assert list(unpacked(tokens, values, 2)) == [
        ([(1, 4.0), (2, 3.0)], [(3, -4.0), (4, -3.0)]),
        ([(5, 2.0), (6, 1.0)], [(7, -2.0), (8, -1.0)]),
    ]
