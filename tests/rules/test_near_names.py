"""Which names are nearly the name of a field that steers, or that asks what steering did."""

from __future__ import annotations

import pytest

from steerserve.rules import near_names
from steerserve.rules.inference import fields


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("sae_stering", "sae_steering"),
        ("sae_steerign", "sae_steering"),
        ("saesteering", "sae_steering"),
        ("saeSteering", "sae_steering"),
        ("SAE-Steering", "sae_steering"),
        ("interventons", "interventions"),
        ("intervention", "interventions"),
        ("steering_intensty", "steering_intensity"),
        ("score_steer", "score_steered"),
        ("return_reading", "return_readings"),
        ("return_log_probs", "return_logprobs"),
        ("return_activations", "return_sae_activations"),
        ("sae_activations", "return_sae_activations"),
        ("return_all_sae_activations", "return_sae_activations"),
        ("steering_report", "return_steering_report"),
        # other names, also of other servers and of one word
        ("return_logprob", None),
        ("return_hidden_states", None),
        ("return_token_ids", None),
        ("return_top_logprobs", None),
        ("sae_steer", None),
        ("steering_vectors", None),
        ("activations", None),
        ("profil", None),
        ("user", None),
        ("", None),
        ("sae_steering" * 100_000, None),
        # fields
        ("sae_steering", None),
        ("steering", None),
        ("echo", None),
        ("instructions", None),
    ],
)
def test_a_name_is_nearly_a_steering_field(name: str, near: str | None) -> None:
    assert fields.near_steering_field(name) == near


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("valeu", ["index", "value"], "the nearest known field is 'value'"),
        ("zzz", ["index", "value"], "the known fields are 'index', 'value'"),
        ("zzz", [], "there is no field"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_or_all(
    name: str, known: list[str], hint: str
) -> None:
    assert near_names.hint(name, known) == hint
