"""Which attached SAE serves which layer of a circuit: every verdict, and whether the whole circuit can be served."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.nouns.circuits.rules import binding
from steerserve.nouns.circuits.rules import document as circuit
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.rules.steering.placed import scaled
from tests.refusals import refusal_of
from tests.rules.steering.saes import Sae


def document(*layers: int, **more: Any) -> Circuit:
    """A circuit with the feature 3 on each of the layers."""
    return circuit.read(
        {
            "name": "c",
            "saes": [{"layer": layer, "mistudio_sae_id": f"sae_{layer}"} for layer in layers],
            "members": [
                {"layer": layer, "feature": {"feature_idx": 3, "strength": -4.0, "sign": -1}}
                for layer in layers
            ],
            **more,
        }
    )


def at_2(**sae: Any) -> Circuit:
    return document(2, saes=[{"layer": 2, **sae}])


@pytest.mark.parametrize(
    ("made", "attached", "verdict", "sae_id", "word"),
    [
        (at_2(), [], "unbound", None, "no SAE is attached at layer 2"),
        (at_2(mistudio_sae_id="x"), [Sae("x", 3)], "unbound", "x", "no SAE is attached"),
        (at_2(), [Sae("x", 2), Sae("y", 2)], "unbound", None, "2 SAEs are attached at layer 2"),
        # with several SAEs at a layer, the declared one serves
        (at_2(mistudio_sae_id="y"), [Sae("x", 2), Sae("y", 2)], "bind", "y", None),
        (at_2(n_features=99), [Sae("x", 2)], "block", "x", "declares 99 features"),
        (at_2(n_features=99, mistudio_sae_id="x"), [Sae("x", 2)], "block", "x", "99"),
        (at_2(n_features=None), [Sae("x", 2)], "bind", "x", None),
        (at_2(n_features=10), [Sae("x", 2)], "bind", "x", None),
        (at_2(n_features=10, mistudio_sae_id="z"), [Sae("x", 2)], "warn", "x", "'z'"),
        (at_2(), [Sae("x", 2, d_sae=3)], "block", "x", "names feature 3"),
    ],
)
def test_the_verdict_of_a_layer(
    made: Circuit, attached: list[Sae], verdict: str, sae_id: str | None, word: str | None
) -> None:
    (bound,) = binding.bind(binding.declared(made), attached)
    assert (bound.verdict, bound.sae_id) == (verdict, sae_id)
    assert bound.reason is None if word is None else word in str(bound.reason)
    assert bound.is_bound is (verdict in ("bind", "warn"))
    assert (bound.key is not None) is bound.is_bound


def test_the_first_sae_with_a_layer_is_the_declared_one() -> None:
    made = document(2, saes=[{"layer": 2, "n_features": 10}, {"layer": 2, "n_features": 99}])
    assert binding.bind(binding.declared(made), [Sae("x", 2)])[0].verdict == "bind"


def test_a_layer_without_the_features_of_a_member_is_blocked() -> None:
    members = [
        {"layer": 2, "feature": {"feature_idx": 3, "strength": 1}},
        {"layer": 2, "member_kind": "cluster_ref", "cluster_name": "not expanded"},
    ]
    made = document(2, members=members)
    assert binding.bind(binding.declared(made), [Sae("x", 2)])[0].verdict == "block"


@pytest.mark.parametrize(
    ("attached", "layers", "is_serveable"),
    [
        ([], (), False),
        ([Sae("sae_2", 2)], (2,), False),
        ([Sae("other", 2), Sae("sae_3", 3)], (2, 3), True),
    ],
)
def test_a_circuit_is_serveable_when_every_layer_is_bound(
    attached: list[Sae], layers: tuple[int, ...], is_serveable: bool
) -> None:
    bindings = binding.bind(binding.declared(document(2, 3)), attached)
    assert binding.bound_layers(bindings) == layers
    assert binding.is_serveable(bindings) is is_serveable


def test_an_index_outside_of_the_sae_is_named_with_its_layer() -> None:
    made, attached = document(2, 3), [Sae("sae_2", 2), Sae("sae_3", 3, d_sae=3)]
    refusal = refusal_of(binding.check_indices, made, attached)
    assert refusal.code == "INVALID_FEATURE_INDEX"
    assert refusal.details == {"feature_idx": 3, "layer": 3, "sae_id": "sae_3", "d_sae": 3}
    binding.check_indices(made, attached[:1])


def test_indices_of_another_feature_space_are_not_checked() -> None:
    made = at_2(n_features=99)
    binding.check_indices(made, [Sae("x", 2, d_sae=3)])


@pytest.mark.shows("steering-errors.7")
def test_the_offenders_are_the_members_of_the_layers_that_no_sae_serves() -> None:
    made = document(2, 3)
    bindings = binding.bind(binding.declared(made), [Sae("sae_3", 3)])
    assert binding.incomplete(made, bindings, "no").details["offenders"] == [
        {
            "feature_idx": 3,
            "layer": 2,
            "sae_id": "sae_2",
            "reason": "no SAE is attached at layer 2",
        }
    ]


@pytest.mark.shows("steering-errors.9")
def test_values_go_to_the_sae_of_their_layer_and_are_clamped_after_the_intensity() -> None:
    made = document(2, 3)
    bindings = binding.bind(binding.declared(made), [Sae("sae_2", 2), Sae("sae_3", 3)])
    authored = binding.values_at(made, bindings)
    # a negative strength has its direction already, so its sign does not count
    assert authored == {"sae_2@2": {3: -4.0}, "sae_3@3": {3: -4.0}}
    assert scaled(authored, 0.5) == {"sae_2@2": {3: -2.0}, "sae_3@3": {3: -2.0}}
    assert scaled(authored, 100) == {"sae_2@2": {3: -200.0}, "sae_3@3": {3: -200.0}}
