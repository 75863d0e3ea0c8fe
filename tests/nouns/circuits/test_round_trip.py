"""A circuit document that is accepted comes back with equal JSON values, whatever keys and values it has."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from steerserve.api.envelope import stored
from steerserve.database.tables import Encoded
from steerserve.nouns.circuits.rules import document as circuit
from steerserve.rules.steering.documents import parse
from tests.circuits import document, feature

KEYS = st.text(min_size=1, max_size=8).map(lambda text: "x_" + text)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
UNKNOWN = st.dictionaries(KEYS, VALUES, max_size=3)
NUMBERS = st.floats(-300, 300) | st.integers(-300, 300)
PEAKS = st.none() | st.floats(0, 1e6)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A circuit document with nulls, unknown keys and members of both kinds."""
    indices = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True))
    members = []
    for index in indices:
        raw = feature(index, draw(NUMBERS), max_activation=draw(PEAKS), **draw(UNKNOWN))
        is_cluster = draw(st.booleans())
        members.append(
            {
                "layer": draw(st.integers(0, 3)),
                "member_kind": "cluster_ref" if is_cluster else None,
                "feature": None if is_cluster else raw,
                "expanded_members": [raw] if is_cluster else None,
                **draw(UNKNOWN),
            }
        )
    edge = {
        "up": {"layer": 0, "feature_idx": indices[0]},
        "down": {"layer": 1, "feature_idx": None, "kind": "cluster"},
        "rung": draw(st.none() | st.integers(0, 3)),
        "type": draw(st.none() | st.text(max_size=8)),
        "position": None,
        **draw(UNKNOWN),
    }
    return document(members=members, edges=[edge], **draw(UNKNOWN))


@settings(max_examples=60, deadline=None)
@given(documents())
def test_an_accepted_document_is_exported_as_it_was_imported(made: dict[str, Any]) -> None:
    imported = parse(json.dumps(made).encode(), circuit.imported)
    assert json.loads(bytes(stored(imported.document).body))["data"] == made
    # the facts that the service works with survive the database too
    kept, dialect = Encoded(circuit.Circuit), sqlite.dialect()
    text = kept.process_bind_param(imported.circuit, dialect)
    assert kept.process_result_value(text, dialect) == imported.circuit
