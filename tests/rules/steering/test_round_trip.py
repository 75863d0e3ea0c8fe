"""A document of a cluster or a circuit that is accepted comes back with equal JSON values, whatever keys and values it
has, and so do the facts that the service works with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from steerserve.api.envelope import stored
from steerserve.database.tables import Encoded
from steerserve.nouns.circuits.rules import document as circuit
from steerserve.nouns.clusters import rules as cluster
from steerserve.rules.steering.documents import parse
from tests import circuits

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
UNKNOWN = st.dictionaries(st.text(min_size=1, max_size=8).map("x-".__add__), VALUES, max_size=3)
MEMBERS = st.builds(
    lambda known, unknown: unknown | known,
    st.fixed_dictionaries(
        {
            "feature_idx": st.integers(0, 2**31 - 1),
            "strength": st.floats(-300, 300) | st.integers(-300, 300),
        },
        optional={
            "sign": st.sampled_from([1, -1, None]),
            "label": st.text(max_size=10) | st.none(),
            "max_activation": st.floats(0, 1e6) | st.none(),
            "pinned": st.booleans() | st.none(),
        },
    ),
    UNKNOWN,
)
CLUSTERS = st.builds(
    lambda known, unknown: unknown | known,
    st.fixed_dictionaries(
        {
            "kind": st.just(cluster.DEFINITION),
            "schema_version": st.just("1"),
            "name": st.text(st.sampled_from("abc é"), min_size=1, max_size=120).filter(str.strip),
            "members": st.lists(MEMBERS, min_size=1, max_size=4),
        },
        optional={
            "budget": st.none() | st.fixed_dictionaries({}, optional={"intensity_range": VALUES}),
            "sae": st.none() | UNKNOWN,
            "sensing": VALUES,
        },
    ),
    UNKNOWN,
)


@st.composite
def circuit_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A circuit document with nulls, unknown keys and members of both kinds."""
    features = draw(
        st.lists(MEMBERS, min_size=1, max_size=6, unique_by=lambda one: one["feature_idx"])
    )
    members = []
    for raw in features:
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
        "up": {"layer": 0, "feature_idx": features[0]["feature_idx"]},
        "down": {"layer": 1, "feature_idx": None, "kind": "cluster"},
        "rung": draw(st.none() | st.integers(0, 3)),
        "type": draw(st.none() | st.text(max_size=8)),
        "position": None,
        **draw(UNKNOWN),
    }
    return circuits.document(members=members, edges=[edge], **draw(UNKNOWN))


def check_round_trip(made: dict[str, Any], document: str, facts: object) -> None:
    exported = json.loads(bytes(stored(document).body))["data"]
    assert exported == made
    assert json.dumps(exported) == json.dumps(made)  # 1 is not 1.0
    kept, dialect = Encoded(type(facts)), sqlite.dialect()
    text = kept.process_bind_param(facts, dialect)
    assert kept.process_result_value(text, dialect) == facts


@pytest.mark.shows("clusters.12")
@settings(max_examples=60, deadline=None)
@given(CLUSTERS)
def test_a_cluster_is_exported_as_it_was_imported(made: dict[str, Any]) -> None:
    (read,) = parse(json.dumps(made).encode(), cluster.imported).clusters
    check_round_trip(made, read.document, read.cluster)


@settings(max_examples=60, deadline=None)
@given(circuit_documents())
def test_a_circuit_is_exported_as_it_was_imported(made: dict[str, Any]) -> None:
    read = parse(json.dumps(made).encode(), circuit.imported)
    check_round_trip(made, read.document, read.circuit)
