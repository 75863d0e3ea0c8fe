"""Fields that a route honours, refuses or does not use; the strict verdict; the header that lists them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules.inference import fields, names
from steerserve.rules.inference.names import CHAT, CHECKPOINT, COMPLETIONS, EMBEDDINGS, GGUF
from tests import SHARED
from tests.refusals import refusal_of

TABLE = """
| Field | Chat (checkpoint engine) | Chat (GGUF) | Completions | Embeddings |
|---|---|---|---|---|
| logprobs, allowed_token_ids | honoured (chat scoring) | refused | honoured on checkpoint engine, refused on GGUF | refused |
| top_logprobs | honoured (chat scoring) | refused | refused (use logprobs) | refused |
| response_format | honoured | refused | refused | refused |
| seed | honoured | refused | honoured on checkpoint engine, refused on GGUF | refused |
| n | honoured, not streaming | refused above 1 | refused above 1 | refused above 1 |
| max_completion_tokens | honoured as max_tokens | honoured | honoured | refused |
| profile, steering_intensity | honoured, refused on scoring requests | refused | refused | refused |
| steering | refused | refused | refused | refused |
| dimensions | refused | refused | refused | refused |
| tools, tool_choice, logit_bias | refused | refused | refused | refused |
""".strip()
"""The specification's own table, word for word."""

BEYOND = {"sae_steering", "interventions", "return_logprobs", "return_readings"}
"""Fields that the specification does not know."""

SPECIFICATION = SHARED / "specification.md"

ROUTES = (CHAT, COMPLETIONS, EMBEDDINGS)
ENGINES = (CHECKPOINT, GGUF)
COLUMNS = (
    ((CHAT, CHECKPOINT),),
    ((CHAT, GGUF),),
    ((COMPLETIONS, CHECKPOINT), (COMPLETIONS, GGUF)),
    ((EMBEDDINGS, CHECKPOINT), (EMBEDDINGS, GGUF)),
)
"""The (route, engine) pairs that each column of the table speaks of."""

QUALIFIERS = {
    ("logprobs", 0): " (chat scoring)",
    ("top_logprobs", 0): " (chat scoring)",
    ("top_logprobs", 2): " (use logprobs)",
    ("n", 0): ", not streaming",
    ("n", 1): " above 1",
    ("n", 2): " above 1",
    ("n", 3): " above 1",
    ("max_completion_tokens", 0): " as max_tokens",
    ("profile", 0): ", refused on scoring requests",
}
"""What the table adds to a verdict: (first field of the row, column) -> words."""

ASKS: dict[str, Any] = {
    "logprobs": 3,
    "allowed_token_ids": [1, 2],
    "top_logprobs": 2,
    "response_format": {"type": "json_object"},
    "seed": 0,
    "n": 2,
    "max_completion_tokens": 1,
    "profile": "calm",
    "steering_intensity": "off",
    "steering": {"features": []},
    "sae_steering": {"features": [{"index": 1, "value": 2.0}]},
    "interventions": {"edits": [{"op": "ablate", "feature": {"index": 1}}]},
    "return_logprobs": {"top": 1},
    "return_readings": ["probe_1"],
    "dimensions": 8,
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "logit_bias": {"5": 1},
}
"""For each field that changes the output, a value that asks for it."""

NO_CHANGE: list[tuple[str, Any]] = [
    ("n", 1),
    ("logprobs", False),
    ("response_format", {"type": "text"}),
    ("tools", []),
    ("logit_bias", {}),
    *((name, None) for name in ASKS),
]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


ROWS = [cells(line) for line in TABLE.splitlines()[2:]]
EVERYWHERE = [(route, engine) for route in ROUTES for engine in ENGINES]
EXPECTED = [
    (name, route, engine, is_honoured)
    for row in ROWS
    for name in row[0].split(", ")
    for column, pairs in enumerate(COLUMNS)
    for route, engine in pairs
    for is_honoured in [
        row[column + 1].startswith("honoured")
        and not (engine == GGUF and "refused on GGUF" in row[column + 1])
    ]
]


def verdict(name: str, column: int) -> str:
    """The cell of a field as `CHANGING` has it, in the words of the table."""
    honouring = [pair for pair in COLUMNS[column] if pair in fields.CHANGING[name]]
    if len(honouring) == len(COLUMNS[column]):
        return "honoured"
    if not honouring:
        return "refused"
    (engine,) = {engine for _, engine in honouring}
    assert engine == CHECKPOINT
    return "honoured on checkpoint engine, refused on GGUF"


def printed(names: list[str]) -> str:
    found = []
    for column in range(len(COLUMNS)):
        (word,) = {verdict(name, column) for name in names}
        found.append(word + QUALIFIERS.get((names[0], column), ""))
    return f"| {', '.join(names)} | {' | '.join(found)} |"


def not_honoured(route: str, body: dict[str, Any], engine: str = CHECKPOINT) -> Refusal:
    return refusal_of(fields.check_honoured, route, fields.changing(body), engine)


def test_what_the_rules_hold_is_the_table_of_the_specification() -> None:
    groups = [row[0].split(", ") for row in ROWS]
    named = [name for group in groups for name in group]
    assert set(named) == fields.CHANGING.keys() - BEYOND
    assert [printed(group) for group in groups] == TABLE.splitlines()[2:]


def test_the_table_here_is_the_one_in_the_specification() -> None:
    if not SPECIFICATION.exists():
        pytest.skip("the specification is not beside this checkout")
    lines = SPECIFICATION.read_text(encoding="utf-8").splitlines()
    start = lines.index(TABLE.splitlines()[0])
    length = next(i for i, line in enumerate(lines[start:]) if not line.startswith("|"))
    assert "\n".join(lines[start : start + length]) == TABLE


EXPECTED += [
    (field, route, engine, route != EMBEDDINGS and engine == CHECKPOINT)
    for field in sorted(BEYOND)
    for route, engine in EVERYWHERE
]


@pytest.mark.shows(
    "request-validation.8 request-validation.9 request-validation.10 request-validation.11",
    "request-validation.12 request-validation.13 request-validation.14 request-validation.15",
    "request-validation.16 request-validation.17",
)
@pytest.mark.parametrize(("name", "route", "engine", "is_honoured"), EXPECTED)
def test_a_field_is_honoured_or_refused_by_name_as_the_table_says(
    name: str, route: str, engine: str, is_honoured: bool
) -> None:
    body = {"model": "m", name: ASKS[name]}
    assert fields.unused(route, body) == []
    if is_honoured:
        fields.check_honoured(route, fields.changing(body), engine)
        return
    refused = not_honoured(route, body, engine)
    assert (refused.code, refused.row.v1, refused.row.v1_code) == (
        "FIELD_NOT_HONOURED",
        400,
        "field_not_honoured",
    )
    assert refused.param == name
    assert refused.details["fields"] == [name]
    assert name in refused.message
    is_for_gguf = engine == GGUF and (name, route, CHECKPOINT, True) in EXPECTED
    assert ("GGUF" in refused.message) == is_for_gguf


def test_a_refusal_names_every_field_that_is_not_honoured_in_the_order_of_the_request() -> None:
    body = {"tools": [1], "user": "me", "seed": 4, "logit_bias": {"1": 2}, "n": 1}
    refused = not_honoured(CHAT, body)
    assert refused.param == "tools"
    assert refused.details["fields"] == ["tools", "logit_bias"]
    assert "tools, logit_bias" in refused.message
    assert not_honoured(CHAT, body, GGUF).details["fields"] == ["tools", "seed", "logit_bias"]


@pytest.mark.parametrize(("route", "engine"), EVERYWHERE)
def test_the_refusal_of_steering_names_the_field_that_steers_where_there_is_one(
    route: str, engine: str
) -> None:
    refused = not_honoured(route, {"steering": ASKS["steering"]}, engine)
    is_there = route != EMBEDDINGS and engine == CHECKPOINT
    assert ("send sae_steering" in refused.message) == is_there


@pytest.mark.shows("request-validation.18")
@pytest.mark.parametrize(("route", "engine"), EVERYWHERE)
@pytest.mark.parametrize(("name", "value"), NO_CHANGE)
def test_a_value_that_means_no_change_is_accepted_everywhere(
    name: str, value: Any, route: str, engine: str
) -> None:
    body = {name: value}
    assert fields.means_no_change(name, value)
    assert fields.changing(body) == ()
    fields.check_honoured(route, fields.changing(body), engine)
    assert fields.unused(route, body) == []
    assert not fields.is_scoring(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", True),
        ("n", 0),
        ("n", 2),
        ("n", "1"),
        ("n", 1.0),
        ("logprobs", 0),
        ("logprobs", True),
        ("logprobs", "false"),
        ("top_logprobs", 0),
        ("top_logprobs", False),
        ("allowed_token_ids", []),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "text", "schema": {}}),
        ("response_format", {}),
        ("response_format", "text"),
        ("seed", 0),
        ("tools", [{}]),
        ("tools", {}),
        ("tool_choice", "auto"),
        ("tool_choice", "required"),
        ("logit_bias", {"1": 0}),
        ("logit_bias", []),
        ("steering", {}),
        ("dimensions", 0),
        ("profile", ""),
        ("steering_intensity", 1.0),
        ("steering_intensity", 0),
    ],
)
def test_only_the_exact_value_means_no_change(name: str, value: Any) -> None:
    assert not fields.means_no_change(name, value)
    assert fields.changing({name: value}) == (name,)


def test_fields_that_change_nothing_are_not_among_those_that_do() -> None:
    body = {"seed": 1, "model": "m", "n": 1, "mood": "calm", "profile": "x", "tools": None}
    assert fields.changing(body) == ("seed", "profile")


# ------------------------------------------------------------------ scoring


@pytest.mark.parametrize(
    ("body", "is_scoring"),
    [
        ({"logprobs": True}, True),
        ({"logprobs": 0}, True),
        ({"logprobs": 20}, True),
        ({"allowed_token_ids": [1]}, True),
        ({"logprobs": False, "allowed_token_ids": [1]}, True),
        ({"logprobs": False}, False),
        ({"logprobs": None, "allowed_token_ids": None}, False),
        ({"top_logprobs": 3}, False),
        ({"max_tokens": 1, "seed": 1}, False),
        ({}, False),
    ],
)
def test_log_probabilities_or_allowed_tokens_make_a_request_a_scoring_one(
    body: dict[str, Any], is_scoring: bool
) -> None:
    assert fields.is_scoring(body) is is_scoring


@pytest.mark.parametrize("name", ["profile", "steering_intensity", "sae_steering", "interventions"])
def test_what_steers_is_refused_by_name_on_a_scoring_request(name: str) -> None:
    refused = refusal_of(fields.check_scoring, {"logprobs": True, name: ASKS[name], "seed": 1})
    assert refused.row.v1 == 400
    assert refused.param == name
    assert refused.details["fields"] == [name]
    assert name in refused.message


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("asked", [{"logprobs": 2}, {"allowed_token_ids": [4]}])
@pytest.mark.parametrize(
    ("name", "value", "idle"),
    [
        ("top_p", 0.5, 1),
        ("top_p", 0, 1.0),
        ("stop", "x", []),
        ("stop", ["x", "y"], []),
        ("frequency_penalty", 0.5, 0),
        ("presence_penalty", -2, 0.0),
    ],
)
def test_scoring_does_not_use_what_only_shapes_generated_text(
    route: str, asked: dict[str, Any], name: str, value: Any, idle: Any
) -> None:
    assert fields.unused(route, {**asked, name: value}) == [name]
    assert fields.unused(route, {**asked, name: idle}) == []
    assert fields.unused(route, {**asked, name: None}) == []
    assert fields.unused(route, {name: value}) == []


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0.5), ("seed", 7), ("max_tokens", 1), ("max_completion_tokens", 1)],
)
def test_scoring_uses_temperature_seed_and_length(route: str, name: str, value: Any) -> None:
    assert fields.unused(route, {"logprobs": 1, name: value}) == []


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_keys_by_token_id_are_used_by_scoring_only(route: str) -> None:
    name = "return_tokens_as_token_ids"
    assert fields.unused(route, {name: True, "logprobs": 1}) == []
    assert fields.unused(route, {name: True}) == [name]
    assert fields.unused(route, {name: False}) == []


# ------------------------------------------------------------------ unused fields


@pytest.mark.parametrize(
    ("route", "name"),
    [
        *((route, name) for route in (CHAT, COMPLETIONS) for name in sorted(fields.READ[route])),
        *((EMBEDDINGS, name) for name in ("model", "input", "encoding_format")),
    ],
)
def test_a_field_that_the_route_reads_is_not_reported(route: str, name: str) -> None:
    assert fields.unused(route, {name: []}) == []


@pytest.mark.parametrize(
    ("route", "name"),
    [
        *((route, name) for route in ROUTES for name in ("user", "größe")),
        *((route, "chat_template_kwargs") for route in ROUTES if route != CHAT),
        (CHAT, "prompt"),
        (CHAT, "input"),
        (CHAT, "add_special_tokens"),
        (CHAT, "encoding_format"),
        (CHAT, "echo"),
        (COMPLETIONS, "messages"),
        (COMPLETIONS, "extra_messages"),
        (COMPLETIONS, "input"),
        (COMPLETIONS, "echo"),
        (EMBEDDINGS, "prompt"),
        (EMBEDDINGS, "messages"),
        (EMBEDDINGS, "temperature"),
        (EMBEDDINGS, "stream"),
        (EMBEDDINGS, "max_tokens"),
        (EMBEDDINGS, "return_sae_activations"),
        (EMBEDDINGS, "return_tokens_as_token_ids"),
    ],
)
def test_a_field_that_the_route_does_not_use_is_reported_and_never_refused(
    route: str, name: str
) -> None:
    body = {"model": "m", name: [{"role": "user", "mood": 1}]}
    assert fields.unused(route, body) == [name]
    assert fields.changing(body) == ()


def test_unused_fields_are_listed_by_location_in_the_order_of_the_request() -> None:
    body = {
        "zeta": 1,
        "model": "m",
        "user": "me",
        "messages": [
            {"role": "user", "content": "hi", "mood": 1},
            "not a message",
            {"role": "assistant", "content": None, "tool_calls": [], "name": "x"},
            {"role": "tool", "content": "42", "tool_call_id": None},
        ],
        "extra_messages": [
            [{"role": "user", "content": "a"}],
            [{"role": "user", "content": "b", "mood": 0, "größe": 2}],
        ],
    }
    assert fields.unused(CHAT, body) == [
        "zeta",
        "user",
        "messages[0].mood",
        "messages[2].tool_calls",
        "extra_messages[1][0].mood",
        "extra_messages[1][0].größe",
    ]


def test_an_explicit_null_is_not_reported_at_any_depth_of_a_conversation() -> None:
    message = {"role": "user", "content": "hi", "mood": None}
    body = {"user": None, "messages": [message], "extra_messages": [[message]]}
    assert fields.unused(CHAT, body) == []


@pytest.mark.parametrize("name", ["messages", "extra_messages"])
@pytest.mark.parametrize("value", [None, "hi", 5, {"role": "user"}, [5], [[5]], [None]])
def test_conversations_of_another_type_are_left_to_the_schema(name: str, value: Any) -> None:
    assert fields.unused(CHAT, {name: value}) == []


def test_a_field_that_a_route_does_not_read_is_reported_once_whatever_is_in_it() -> None:
    body = {"return_sae_activations": {"x": 1}, "return_tokens_as_token_ids": True}
    assert fields.unused(EMBEDDINGS, body) == list(body)
    body = {"messages": [{"mood": 1}], "extra_messages": [[{"mood": 1}]]}
    assert fields.unused(COMPLETIONS, body) == list(body)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "mood": 1}]}]},
            "messages[0].content[0].mood",
        ),
        ({"stream": True, "stream_options": {"mood": 1}}, "stream_options.mood"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {}, "description": "b"},
                }
            },
            "response_format.json_schema.description",
        ),
    ],
    ids=["a part of a content", "stream options", "the description of a schema"],
)
def test_an_unknown_field_inside_a_field_that_is_read_is_reported(
    body: dict[str, Any], where: str
) -> None:
    assert fields.unused(CHAT, body) == [where]
    fields.check_whole(CHAT, body)


SCHEMA = {"name": "a", "schema": {}}


@pytest.mark.parametrize(
    ("route", "body", "where", "hint"),
    [
        (CHAT, {"sae_steering": {"features": [], "mod": "add"}}, "sae_steering.mod", "'mode'"),
        (
            COMPLETIONS,
            {"sae_steering": {"features": [{"index": 1, "value": 1}, {"valu": 2}]}},
            "sae_steering.features[1].valu",
            "'value'",
        ),
        (
            names.RESPONSES,
            {"return_sae_activations": {"größe": 0}},
            "return_sae_activations.größe",
            "'top_k'",
        ),
        (
            CHAT,
            {"return_sae_activations": {"positions": {"star": 0, "end": 1}}},
            "return_sae_activations.positions.star",
            "'start'",
        ),
        (CHAT, {"return_logprobs": {"tops": 1}}, "return_logprobs.tops", "'top'"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {**SCHEMA, "strct": True}}},
            "response_format.json_schema.strct",
            "'strict'",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format.schema",
            "json_schema",
        ),
        (
            CHAT,
            {"response_format": {"type": "text", "json_schema": SCHEMA}},
            "response_format.json_schema",
            "json_schema",
        ),
        (
            names.RESPONSES,
            {"text": {"format": {"type": "json_object", "schema": {}}}},
            "text.format.schema",
            "json_schema",
        ),
        (
            names.RESPONSES,
            {"text": {"format": {"type": "json_schema", **SCHEMA, "json_schema": {}}}},
            "text.format.json_schema",
            "'schema'",
        ),
    ],
)
def test_an_unknown_field_inside_what_says_what_is_written_is_refused(
    route: str, body: dict[str, Any], where: str, hint: str
) -> None:
    refused = refusal_of(fields.check_whole, route, body)
    assert refused.row.v1 == 400
    assert refused.param == where
    assert refused.message.startswith(f"{where}: ")
    assert hint in refused.message


def test_a_null_inside_what_says_what_is_written_is_no_field() -> None:
    body = {
        "response_format": {"type": "text", "json_schema": None},
        "return_sae_activations": {"top_k": 1, "mood": None},
    }
    fields.check_whole(CHAT, body)
    fields.check_whole(names.RESPONSES, {"text": {"format": None, "verbosity": "low"}, **body})


@settings(deadline=None, derandomize=True)
@given(
    st.sampled_from(ROUTES),
    st.dictionaries(
        st.sampled_from(
            [*ASKS, *fields.READ[CHAT], *fields.READ[COMPLETIONS], "input", "user", "mood"]
        ),
        st.sampled_from([None, True, False, 0, 1, 0.5, "x", [], {}, [[{"a": 1}]], {"a": 1}]),
    ),
)
def test_every_asking_field_is_read_refused_or_reported_and_never_both_of_the_last(
    route: str, body: dict[str, Any]
) -> None:
    names = fields.changing(body)
    reported = {where for where in fields.unused(route, body) if not re.search(r"[.\[]", where)}
    assert not reported & set(names)
    for name, value in body.items():
        is_known = name in fields.READ[route] or name in fields.CHANGING
        assert value is None or is_known or name in reported


# ------------------------------------------------------------------ the strict header


@pytest.mark.shows("request-validation.4")
@pytest.mark.parametrize(
    ("header", "is_strict"),
    [
        (None, None),
        ("true", True),
        ("TRUE", True),
        ("1", True),
        ("false", False),
        ("False", False),
        ("0", False),
    ],
)
def test_the_strict_header_has_four_values(header: str | None, is_strict: bool | None) -> None:
    assert fields.is_strict(header) is is_strict


@pytest.mark.parametrize("header", ["", "yes", "on", "2", "01", "true, true", "null", "trüe"])
def test_any_other_strict_header_is_refused_by_name(header: str) -> None:
    refused = refusal_of(fields.is_strict, header)
    assert refused.row.v1 == 400
    assert refused.param == "X-Service-Strict"
    assert "X-Service-Strict" in refused.message


@pytest.mark.shows("request-validation.4")
def test_strict_names_every_unused_location_and_accepts_none() -> None:
    fields.check_strict([])
    refused = refusal_of(fields.check_strict, ["user", "messages[0].mood"])
    assert (refused.row.v1, refused.row.v1_code) == (400, "unused_fields_refused")
    assert refused.param == "user"
    assert refused.details["fields"] == ["user", "messages[0].mood"]
    assert "user, messages[0].mood" in refused.message


# ------------------------------------------------------------------ the header of ignored fields


def best(locations: list[str], limit: int) -> str:
    """The longest list of whole entries that fits, worked out the slow way."""
    entries = [fields.header_value([location], 10**6) for location in locations]
    for kept in range(len(entries), -1, -1):
        rest = len(entries) - kept
        value = ", ".join([*entries[:kept], *([f"+{rest} more"] if rest else [])])
        if len(value.encode()) <= limit:
            return value
    raise AssertionError(limit)


@pytest.mark.shows("request-validation.2", "limits.19")
def test_the_header_may_be_1024_bytes_and_not_one_more() -> None:
    locations = ["a" * 500, "b" * 500, "c" * 20]
    assert fields.header_value(locations, 1024) == ", ".join(locations)
    assert len(fields.header_value(locations, 1024)) == 1024
    locations[2] += "c"
    assert fields.header_value(locations, 1024) == f"{locations[0]}, {locations[1]}, +1 more"


def test_the_count_itself_is_within_the_limit() -> None:
    tail = [f"f{i}" for i in range(200)]  # 3 digits make the count one entry of 9 bytes
    fitting = ["a" * (1024 - len(", +200 more")), *tail]
    assert fields.header_value(fitting, 1024) == f"{fitting[0]}, +200 more"
    assert fields.header_value(["a" + fitting[0], *tail], 1024) == "+201 more"


def test_the_limit_counts_encoded_bytes() -> None:
    assert fields.header_value(["ö" * 170, "x"], 1024) == "%C3%B6" * 170 + ", x"
    assert fields.header_value(["ö" * 171, "x"], 1024) == "+2 more"


def test_a_location_longer_than_the_header_is_only_counted() -> None:
    assert fields.header_value(["x" * 5000], 64) == "+1 more"
    assert fields.header_value(["a", "x" * 5000, "b"], 64) == "a, +2 more"


@pytest.mark.parametrize(
    ("location", "written"),
    [
        ("user", "user"),
        ("messages[3].tool_calls", "messages[3].tool_calls"),
        ("extra_messages[1][0].mood", "extra_messages[1][0].mood"),
        ("return_sae_activations.x", "return_sae_activations.x"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201"),
        ("a, b", "a%2C%20b"),
        ("100%", "100%25"),
        ("\x00\x7f", "%00%7F"),
        ("😀", "%F0%9F%98%80"),
        ("+5 more", "+5%20more"),
    ],
)
def test_a_name_cannot_end_or_imitate_an_entry_and_leaves_printable_ascii_only(
    location: str, written: str
) -> None:
    assert fields.header_value([location], 1024) == written
    assert unquote(written) == location


def test_a_field_without_a_name_still_shows() -> None:
    assert fields.header_value(["", "user"], 1024) == '"", user'


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20), st.integers(64, 200))
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


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.text("ab, %ö", min_size=1, max_size=40), min_size=1, max_size=30),
    st.integers(64, 300),
)
def test_the_header_holds_as_many_locations_as_fit(locations: list[str], limit: int) -> None:
    assert fields.header_value(locations, limit) == best(locations, limit)


@pytest.mark.timeout(5)  # work that grows with the square of the fields would hold the event loop
def test_a_body_full_of_unused_fields_is_cut_in_one_pass() -> None:
    locations = [f"f{i}" for i in range(200_000)]
    value = fields.header_value(locations, 1024)
    assert len(value) <= 1024
    assert value.endswith(" more")


# ---------------------------------------------------------------------- the engine of the named model


@pytest.mark.shows("request-validation.6")
def test_template_variables_are_reported_for_gguf() -> None:
    body = {"chat_template_kwargs": {"thinking": True}}
    assert fields.unused_by(GGUF, body) == ["chat_template_kwargs"]
    assert fields.unused_by(CHECKPOINT, body) == []
    assert fields.unused_by(GGUF, {"chat_template_kwargs": {}}) == []


# ---------------------------------------------------------------------- the load policy


@pytest.mark.parametrize(
    ("header", "may_load"),
    [(None, True), ("auto", True), (" Auto ", True), ("refuse", False), ("REFUSE", False)],
)
def test_the_load_policy_says_whether_a_request_may_load(
    header: str | None, may_load: bool
) -> None:
    assert fields.may_load(header) is may_load


@pytest.mark.parametrize("header", ["", "never", "auto, refuse"])
def test_any_other_load_policy_is_refused_by_its_name(header: str) -> None:
    refused = refusal_of(fields.may_load, header)
    assert (refused.code, refused.param) == (
        "INVALID_PARAMETER",
        "X-Service-Load-Policy",
    )


@pytest.mark.parametrize(
    ("body", "unused"),
    [
        ({"echo": True}, ["echo"]),
        ({"echo": True, "allowed_token_ids": [1]}, ["echo"]),
        ({"echo": True, "logprobs": 0}, []),
        ({"echo": False}, []),
        ({"echo": None}, []),
    ],
)
def test_echo_is_used_with_log_probabilities_on_text_completions(
    body: dict[str, Any], unused: list[str]
) -> None:
    assert fields.unused(COMPLETIONS, body) == unused


@pytest.mark.parametrize(
    ("name", "value", "engines"),
    [
        ("text", {"format": {"type": "json_object"}}, {CHECKPOINT}),
        ("seed", 1, {CHECKPOINT}),
        ("profile", "calm", {CHECKPOINT}),
        ("store", True, set()),
        ("include", [names.OUTPUT_LOGPROBS], {CHECKPOINT}),
        ("response_format", {"type": "json_object"}, set()),
        ("max_tokens", 1, set()),
    ],
)
def test_responses_honour_fields_under_their_own_names(
    name: str, value: Any, engines: set[str]
) -> None:
    asking = fields.changing({name: value}, names.RESPONSES)
    for engine in ENGINES:
        if engine in engines:
            fields.check_honoured(names.RESPONSES, asking, engine)
        else:
            with pytest.raises(Refusal, match=name):
                fields.check_honoured(names.RESPONSES, asking, engine)


@pytest.mark.parametrize("name", ["reponse_format", "responseFormat", "response_formats"])
def test_a_field_that_is_nearly_one_that_steers_nothing_is_only_unused(name: str) -> None:
    assert fields.near_steering_field(name) is None
