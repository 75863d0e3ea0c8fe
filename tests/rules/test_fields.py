"""Fields that a route honours, refuses or does not use; the strict verdict; the header that lists them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules import fields
from steerserve.rules.fields import CHAT, COMPLETIONS

ROUTES = (CHAT, COMPLETIONS)
READ_BY_BOTH = (
    "model stream temperature top_p max_tokens max_completion_tokens stop frequency_penalty "
    "presence_penalty seed"
).split()
NEVER_HONOURED = "steering dimensions tools tool_choice logit_bias".split()
OUTPUT_CHANGING = (
    "logprobs allowed_token_ids top_logprobs response_format seed n max_completion_tokens profile "
    "steering_intensity steering dimensions tools tool_choice logit_bias extra_messages "
    "return_sae_activations add_special_tokens return_tokens_as_token_ids"
).split()
ASKS_FOR_SOMETHING: dict[str, Any] = {
    "steering": {"1": 5.0},
    "dimensions": 8,
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "logit_bias": {"5": 1},
}
NO_CHANGE: list[tuple[str, Any]] = [
    ("n", 1),
    ("logprobs", False),
    ("response_format", {"type": "text"}),
    ("tools", []),
    ("logit_bias", {}),
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", READ_BY_BOTH)
def test_a_field_of_the_route_is_neither_refused_nor_reported(route: str, name: str) -> None:
    fields.check_honoured(route, {name: "anything"})
    assert fields.unused(route, {name: "anything"}) == []


def test_several_choices_are_a_chats_and_refused_on_text_completions() -> None:
    fields.check_honoured(fields.CHAT, {"n": 2})
    fields.check_honoured(fields.COMPLETIONS, {"n": 1})
    with pytest.raises(Refusal) as refused:
        fields.check_honoured(fields.COMPLETIONS, {"n": 2})
    assert (refused.value.code, refused.value.param) == ("FIELD_NOT_HONOURED", "n")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", OUTPUT_CHANGING)
def test_an_output_changing_field_is_honoured_or_refused_never_merely_reported(
    route: str, name: str
) -> None:
    assert (name in fields.HONOURED[route]) != (name in fields.REFUSED[route])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", NEVER_HONOURED)
def test_a_field_that_no_route_honours_is_refused_by_name(route: str, name: str) -> None:
    with pytest.raises(Refusal) as refused:
        fields.check_honoured(route, {"model": "m", name: ASKS_FOR_SOMETHING[name]})
    assert refused.value.code == "FIELD_NOT_HONOURED"
    assert refused.value.param == name
    assert refused.value.details["fields"] == [name]
    assert name in refused.value.message


def test_a_refusal_names_every_field_that_is_not_honoured() -> None:
    with pytest.raises(Refusal) as refused:
        fields.check_honoured(CHAT, {"tools": [1], "user": "me", "logit_bias": {"1": 2}})
    assert refused.value.details["fields"] == ["tools", "logit_bias"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "value"), NO_CHANGE)
def test_a_value_that_means_no_change_is_accepted_everywhere(
    route: str, name: str, value: Any
) -> None:
    fields.check_honoured(route, {name: value})
    assert fields.unused(route, {name: value}) == []


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", OUTPUT_CHANGING)
def test_an_explicit_null_means_no_change(route: str, name: str) -> None:
    fields.check_honoured(route, {name: None})
    assert fields.unused(route, {name: None}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", True),
        ("n", 2),
        ("n", "1"),
        ("logprobs", 0),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "text", "schema": {}}),
        ("tools", [{}]),
        ("tools", {}),
        ("logit_bias", {"1": 0}),
        ("logit_bias", []),
        ("steering", {}),
        ("profile", ""),
    ],
)
def test_only_the_exact_value_means_no_change(name: str, value: Any) -> None:
    assert not fields.means_no_change(name, value)


def test_unused_fields_are_listed_by_location_in_the_order_of_the_request() -> None:
    body = {
        "zeta": 1,
        "model": "m",
        "user": "me",
        "messages": [
            {"role": "user", "content": "hi", "weight": 1},
            "not a message",
            {"role": "assistant", "content": None, "tool_calls": [], "name": "x"},
            {"role": "tool", "content": "42", "tool_call_id": None},
        ],
    }
    expected = ["zeta", "user", "messages[0].weight", "messages[2].tool_calls"]
    assert fields.unused(CHAT, body) == expected


def test_messages_are_not_used_by_text_completions_nor_a_prompt_by_chat() -> None:
    messages = [{"role": "user", "extra": 1}]
    assert fields.unused(COMPLETIONS, {"messages": messages, "prompt": "a"}) == ["messages"]
    assert fields.unused(CHAT, {"messages": [], "prompt": "a"}) == ["prompt"]


@pytest.mark.parametrize("messages", [None, "hi", 5, {"role": "user"}])
def test_messages_of_another_type_are_left_to_the_schema(messages: Any) -> None:
    assert fields.unused(CHAT, {"messages": messages}) == []


@pytest.mark.parametrize(
    ("header", "is_strict"),
    [(None, False), ("true", True), ("1", True), ("false", False), ("0", False)],
)
def test_the_strict_header_has_four_values(header: str | None, is_strict: bool) -> None:
    assert fields.is_strict(header) is is_strict


@pytest.mark.parametrize("header", ["", "yes", "on", "2", "01", "true, true", "null", "tr\u00fce"])
def test_any_other_strict_header_is_refused_by_name(header: str) -> None:
    with pytest.raises(Refusal) as refused:
        fields.is_strict(header)
    assert refused.value.row.v1 == 400
    assert refused.value.param == "X-Service-Strict"


def test_strict_names_every_unused_location() -> None:
    with pytest.raises(Refusal) as refused:
        fields.check_strict(["user", "messages[0].weight"])
    assert refused.value.code == "UNUSED_FIELDS_REFUSED"
    assert refused.value.details["fields"] == ["user", "messages[0].weight"]
    assert "user, messages[0].weight" in refused.value.message


def test_strict_accepts_a_request_without_unused_fields() -> None:
    fields.check_strict([])


def test_what_does_not_fit_the_header_is_counted_in_its_last_entry() -> None:
    locations = [f"field_{i:02}" for i in range(20)]
    assert fields.header_value(locations, 64) == (
        "field_00, field_01, field_02, field_03, field_04, +15 more"
    )


def test_locations_that_just_fit_are_not_cut() -> None:
    locations = ["a" * 30, "b" * 32]
    assert fields.header_value(locations, 64) == ", ".join(locations)
    assert fields.header_value([*locations, "c"], 64) == "a" * 30 + ", +2 more"


def test_a_location_longer_than_the_header_is_only_counted() -> None:
    assert fields.header_value(["x" * 5000], 64) == "+1 more"


@pytest.mark.parametrize(
    ("location", "written"),
    [
        ("user", "user"),
        ("messages[3].tool_calls", "messages[3].tool_calls"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201"),
        ("a, b", "a%2C%20b"),
        ("100%", "100%25"),
        ("\x00\x7f", "%00%7F"),
        ("😀", "%F0%9F%98%80"),
    ],
)
def test_characters_outside_printable_ascii_are_percent_encoded(
    location: str, written: str
) -> None:
    assert fields.header_value([location], 1024) == written
    assert unquote(written) == location


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=20), st.integers(64, 200))
def test_the_header_is_printable_ascii_within_its_limit_and_counts_every_field(
    locations: list[str], limit: int
) -> None:
    value = fields.header_value(locations, limit)
    assert len(value.encode()) <= limit
    assert all(0x20 <= ord(character) < 0x7F for character in value)
    entries = value.split(", ")
    cut = re.fullmatch(r"\+(\d+) more", entries[-1])
    kept = entries[:-1] if cut else entries
    assert [unquote(entry) for entry in kept] == locations[: len(kept)]
    assert len(kept) + (int(cut[1]) if cut else 0) == len(locations)


@pytest.mark.timeout(5)  # work that grows with the square of the fields would hold the event loop
def test_a_body_full_of_unused_fields_is_cut_in_one_pass() -> None:
    locations = [f"f{i}" for i in range(200_000)]
    value = fields.header_value(locations, 1024)
    assert len(value) <= 1024
    assert value.endswith(" more")
