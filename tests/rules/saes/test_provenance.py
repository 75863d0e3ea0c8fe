"""Which SAE and which model are the same, and what a document may say of them."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.rules.saes import provenance
from steerserve.rules.saes.provenance import ModelOrigin, Origin, SaeOrigin

HUB = SaeOrigin("acme/saes", "abc", "layer_3")
LOCAL = SaeOrigin(content_digest="f" * 64)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (HUB, SaeOrigin("acme/saes", "abc", "layer_3"), True),
        (HUB, SaeOrigin("acme/saes", "abc", "layer_4"), False),
        (HUB, SaeOrigin("acme/saes", "def", "layer_3"), False),
        (SaeOrigin("acme/saes"), SaeOrigin("acme/saes"), False),
        (LOCAL, SaeOrigin(content_digest="f" * 64), True),
        (LOCAL, SaeOrigin(content_digest="0" * 64), False),
        (LOCAL, HUB, False),
        (SaeOrigin(), SaeOrigin(), False),
    ],
)
def test_saes_are_the_same_by_their_content_or_by_file_and_commit(
    one: SaeOrigin, other: SaeOrigin, is_same: bool
) -> None:
    assert one.is_same(other) is other.is_same(one) is is_same


def test_a_model_is_known_by_its_name_or_its_repository() -> None:
    model = ModelOrigin("demo", "acme/demo")
    assert model.is_called("demo", None)
    assert model.is_called("renamed", "acme/demo")
    assert not model.is_called("other", "acme/other")
    assert not ModelOrigin("demo").is_called("other", None)


@pytest.mark.parametrize(
    ("document", "origin"),
    [
        ({}, None),
        ({"sae": {}, "model": {}}, None),
        ({"sae": None, "model": None}, None),
        ({"sae": {"repo_id": "acme/saes", "layer": 9}}, None),
        ({"model": {"repo_id": "acme/tiny"}}, Origin(None, ModelOrigin(None, "acme/tiny"))),
        ({"sae": {"content_digest": "ab", "revision": 7}}, Origin(SaeOrigin(content_digest="ab"))),
        ({"sae": {"content_digest": "x" * 501}}, None),
        ({"model": {"name": "a\x00b"}}, None),
        ({"model": {"name": "\ud800"}}, None),
    ],
)
def test_texts_that_cannot_be_an_origin_are_left_out(
    document: dict[str, Any], origin: Origin | None
) -> None:
    assert provenance.read(document) == origin
