"""The places of directions, their digest, and whether they fit a model."""

from __future__ import annotations

import hashlib
import struct

import pytest

from steerserve.rules.steering import vector
from steerserve.rules.steering.vector import Convention, Direction, packed
from tests.refusals import refusal_of

WIDTHS = {"resid_post": 2, "mlp_out": 2}


@pytest.mark.parametrize(
    ("index", "site", "convention", "offset", "where"),
    [
        (3, "resid_post", "resid_post", 0, (3, "resid_post")),
        (3, "resid_post", "gguf", -1, (2, "resid_post")),
        (3, "resid_post", "resid_pre", 0, (2, "resid_post")),
        (0, "resid_post", "resid_pre", 0, (0, "resid_pre")),
        (0, "resid_post", "resid_pre", 1, (0, "resid_post")),
        (1, "resid_post", "hf_hidden_states", 0, (0, "resid_post")),
        (0, "resid_post", "gguf", -1, None),
        (0, "resid_post", "resid_pre", -1, None),
        (9999, "resid_post", "gguf", 1, None),
        (3, "mlp_out", "resid_pre", 0, (3, "mlp_out")),
    ],
)
def test_the_place_of_a_direction(
    index: int,
    site: str,
    convention: Convention,
    offset: int,
    where: tuple[int, str] | None,
) -> None:
    assert vector.place(index, site, convention, offset) == where


def test_the_digest_is_that_of_the_places_and_numbers() -> None:
    one = Direction(1, "resid_post", packed([1.0, 2.0]))
    expected = hashlib.sha256(b"1:resid_post:2\n" + struct.pack("<2f", 1, 2)).hexdigest()
    assert vector.content_digest([one]) == expected


def test_what_fits_no_place_of_a_model_is_named() -> None:
    fits = Direction(3, "mlp_out", packed([1.0, 2.0]))
    vector.check_fits("calm", [fits], 4, WIDTHS)
    for odd in (
        Direction(4, "resid_post", packed([1.0, 2.0])),
        Direction(0, "resid_post", packed([1.0])),
        Direction(0, "attn_out", packed([1.0, 2.0])),
    ):
        refusal = refusal_of(vector.check_fits, "calm", [fits, odd], 4, WIDTHS)
        assert refusal.code == "VECTOR_MISMATCH"
        assert refusal.details["site"] == odd.site


def test_the_unit_of_a_direction_and_the_cosine_of_two() -> None:
    first, second = (Direction(0, "resid_post", packed(v)) for v in ([3.0, 4.0], [-4.0, 3.0]))
    assert struct.unpack("<2f", first.unit) == pytest.approx((0.6, 0.8))
    assert vector.cosine(first, first) == 1.0
    assert vector.cosine(first, second) == 0.0
