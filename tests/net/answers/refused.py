"""The refusals that a body can cause at its route: name -> the fields that are sent beside those of the plain body."""

from __future__ import annotations

from typing import Any

from tests.net.answers.options import FEATURE, INLINE, PET, SEA, SEEDED, STORY, Options, schema


def _each(field: str, *values: Any) -> Options:
    """A field with each of these values."""
    return {f"{field}: {str(value)[:40]}": {field: value} for value in values}


def _steered(*features: Any, **more: Any) -> dict[str, Any]:
    return {"sae_steering": {"features": list(features), **more}}


def _edit(**fields: Any) -> dict[str, Any]:
    return {"interventions": {"edits": [{"op": "add", **fields}]}}


def _at(positions: Any) -> dict[str, Any]:
    return _edit(feature=FEATURE, value=1, positions=positions)


def _when(**condition: Any) -> dict[str, Any]:
    return _edit(feature=FEATURE, value=1, when=condition)


def _acts(**fields: Any) -> dict[str, Any]:
    return {"return_sae_activations": fields}


ONE = {"index": 90, "value": 1.0}
DEEP: dict[str, Any] = {"feature": FEATURE, "above": 0}
for _ in range(5):
    DEEP = {"any": [DEEP]}

SAMPLING: Options = {
    **_each("model", None, 3, "", "nobody", "dem", "demo@nobody", "no\r\nbody", "m" * 300),
    **_each("stream", "yes", 1),
    **_each("temperature", 2.1, -0.1, "1", True),
    **_each("top_p", 1.1, -1, [1]),
    **_each("stop", "", ["a", ""], [1], ["a"] * 17, 3),
    **_each("frequency_penalty", 2.5, "1"),
    **_each("presence_penalty", -2.5),
    **_each("seed", -1, 2**32, True, 1.0, "1"),
    **_each("tools", [{"type": "function", "function": {"name": "f"}}]),
    **_each("tool_choice", "required"),
    **_each("logit_bias", {"5": 1}),
    **_each("steering", {"90": 1}),
    **_each("dimensions", 3),
    "several that are not honoured": {"logit_bias": {"5": 1}, "dimensions": 3, "seed": 1},
}

STEERING: Options = {
    **_each("sae_steering", 3, {}, {"features": {}}),
    "sae_steering, a feature twice": _steered(ONE, ONE),
    "sae_steering with interventions": _steered(ONE) | _edit(feature=FEATURE, value=1),
    "a nearly right name": {"sae_stering": {"features": []}},
    "another nearly right name": {"return_sae_activation": {}, "user": "a"},
    **_each("interventions", 3, [], {}, {"edits": 3}, {"edits": [3]}, {"edit": []}),
    "interventions, an unknown op": _edit(feature=FEATURE, value=1, op="push"),
    **_each("return_steering_report", "yes"),
    **_each("return_logprobs", True, {"top": 21}, {"top": -1}, {"of": []}, {"of": ["both"]}),
    **_each("return_readings", "{vector sea}", [], ["sea"], ["vec_nobody"], ["probe_nobody"]),
}
"""What steers, and what is told beside a text."""

INSIDE: Options = {
    "sae_steering, a feature that is none": _steered(3),
    "sae_steering, too many": _steered(*({"index": at, "value": 1.0} for at in range(1001))),
    "sae_steering, no value": _steered({"index": 1}),
    "sae_steering, no index": _steered({"value": 1}),
    "sae_steering, a negative index": _steered({"index": -1, "value": 1.0}),
    "sae_steering, an index over the SAE's": _steered({"index": 5000, "value": 1.0}),
    "sae_steering, too large a value": _steered({"index": 1, "value": 1e9}),
    "sae_steering, a text as the value": _steered({"index": 1, "value": "1"}),
    "sae_steering, an unknown mode": _steered(ONE, mode="set"),
    "sae_steering, an unknown field": _steered(ONE, modes="add"),
    "sae_steering, an unknown field of a feature": _steered(ONE | {"strength": 1}),
    "sae_steering, an unknown SAE": _steered(ONE | {"sae_id": "sae_nobody"}),
    "sae_steering, an SAE that is not attached": _steered(ONE | {"sae_id": "{sae 2}"}),
    "sae_steering, a layer without an SAE": _steered(ONE | {"layer": 1}),
    "interventions, an unknown mode": {"interventions": {"edits": [], "mode": "set"}},
    "interventions, too many": {
        "interventions": {"edits": [{"op": "add", "feature": FEATURE, "value": 1}] * 300}
    },
    "interventions, an unknown field of all": {"interventions": {"edits": [], "keep_norm": True}},
    "interventions, an unknown field": _edit(feature=FEATURE, vlaue=1),
    "interventions, neither": _edit(value=1),
    "interventions, both": _edit(feature=FEATURE, vector="sea", value=1),
    "interventions, no value": _edit(feature=FEATURE),
    "interventions, a value without use": _edit(feature=FEATURE, value=1, op="ablate"),
    "interventions, too large a value": _edit(feature=FEATURE, value=1e300),
    "interventions, a feature over the SAE's": _edit(feature={"index": 5000}, value=1),
    "interventions, a layer without an SAE": _edit(feature={"index": 1, "layer": 1}, value=1),
    "interventions, a swap of a feature": _edit(feature=FEATURE, op="swap"),
    "interventions, a swap without a target": _edit(vector="sea", op="swap"),
    "interventions, a target without a swap": _edit(vector="sea", value=1, to="lift"),
    "interventions, layers of a feature": _edit(feature=FEATURE, value=1, layers=[1]),
    "interventions, an unknown vector": _edit(vector="nobody", value=1),
    "interventions, a nearly right vector": _edit(vector="lifts", value=1),
    "interventions, layers that a vector lacks": _edit(vector="sea", value=1, layers=[0, 1]),
    "interventions, layers the other way": _edit(
        vector="lift", value=1, layers={"from": 2, "to": 1}
    ),
    "interventions, an unknown unit": _edit(vector="sea", value=1, unit="max"),
    "interventions, the maximum that is unknown": _edit(
        feature={"index": 1000}, value=1, unit="max"
    ),
    "interventions, an unknown site": _edit(vector=INLINE | {"site": "nowhere"}, value=1),
    "interventions, data that is none": _edit(vector=INLINE | {"data": "?"}, value=1),
    "interventions, data of another shape": _edit(vector=INLINE | {"shape": [3]}, value=1),
    "interventions, a narrow vector": _edit(vector={"layer": 2, "data": "AACAPw=="}, value=1),
    "interventions, a vector of zeros": _edit(vector={"layer": 2, "data": "AAAAAA=="}, value=1),
    "interventions, a layer over the model's": _edit(vector=INLINE | {"layer": 9}, value=1),
    "positions, unknown": _at("first"),
    "positions, none": _at({}),
    "positions, an unknown field": _at({"prompt_position": [0]}),
    "positions, an empty list": _at({"tokens": []}),
    "positions, a window without room": _at({"prompt_window": [3, 3]}),
    "positions, nothing excluded": _at({"names": ["all"], "exclude": {}}),
    "positions, an unknown role": _at({"roles": ["wizard"]}),
    "when, nothing": _when(),
    "when, two": _when(feature=FEATURE, vector="sea", above=0),
    "when, no bound": _when(feature=FEATURE),
    "when, both bounds": _when(feature=FEATURE, above=0, below=1),
    "when, an unknown over": _when(feature=FEATURE, above=0, over="all"),
    "when, a hold of none": _when(feature=FEATURE, above=0, hold=0),
    "when, a hold of the prompt": _when(feature=FEATURE, above=0, over="prompt_max", hold=2),
    "when, an unknown probe": _when(probe="nobody", above=0),
    "when, no choices": _when(any=[]),
    "when, bounds beside choices": _when(any=[{"feature": FEATURE, "above": 0}], above=1),
    "when, too deep": _when(**DEEP),
    "return_logprobs, an unknown field": {"return_logprobs": {"tops": 1}},
    "return_readings, twice": {"return_readings": ["{vector sea}", "{vector sea}"]},
    "return_readings, too many": {"return_readings": [f"vec_{at}" for at in range(17)]},
    "activations, no object": {"return_sae_activations": True},
    "activations, an unknown field": _acts(topk=1),
    "activations, an unknown SAE": _acts(sae_id="sae_nobody"),
    "activations, an SAE of the wrong type": _acts(sae_id=3),
    "activations, a layer without an SAE": _acts(layer=1),
    "activations, a layer of another SAE": _acts(sae_id="{sae 3}", layer=2),
    "activations, a negative layer": _acts(layer=-1),
    "activations, top_k of none": _acts(top_k=0),
    "activations, too large a top_k": _acts(top_k=5000),
    "activations, no features": _acts(features=[]),
    "activations, a feature over the SAE's": _acts(features=[5000]),
    "activations, features that are none": _acts(features=["a"]),
    "activations, unknown positions": _acts(positions="first"),
    "activations, a window without room": _acts(positions={"start": 2, "end": 2}),
    "activations, half a window": _acts(positions={"start": 2}),
    "activations, an unknown read point": _acts(read_point="before"),
    "activations, stream_positions of a text": _acts(stream_positions="yes"),
    "activations, an unknown rank": _acts(rank="size"),
}
"""What is wrong inside a field that steers or tells. One function reads such a field for all routes, and the tests of the
rules have its faults, so each of these is refused by one route."""

DIAL: Options = {
    **_each("profile", 3, "", "nobody", "se"),
    **_each("steering_intensity", 3, -1, "half", True),
    **_each("chat_template_kwargs", [], {"messages": []}, {"a b": 1}, {"a": 2**70}),
    "profile with own steering": {"profile": "sea", **_steered(ONE)},
    "profile in both": {"model": "demo@sea", "profile": "mixed"},
    "model@profile with own edits": {"model": "demo@sea", **_edit(feature=FEATURE, value=1)},
}

LIMITS: Options = {
    **_each("max_tokens", 0, -1, 1.5, True, 2**31, 5000),
    **_each("max_completion_tokens", 0, "1"),
    "two limits of tokens": {"max_tokens": 3, "max_completion_tokens": 4},
    **_each("stream_options", 3, {"include_usage": 1}),
    **_each("allowed_token_ids", [], ["a"], [1], [5, True], 5),
}


def _form(**fields: Any) -> dict[str, Any]:
    return {"response_format": fields}


_SCORED = {"logprobs": True, "max_tokens": 1}

CHAT: Options = {
    **_each("messages", None, [], "Hi", [3], [{"role": "user"}], [{"content": "x"}]),
    "an unknown role": {"messages": [{"role": "wizard", "content": "x"}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "a prompt in a chat": {"messages": None, "prompt": "One day"},
    "too many messages": {"messages": STORY * 2001},
    **_each("n", 0, 17, True, 10**30, "2"),
    "n, streamed": {"n": 2, "stream": True},
    "n with extra_messages": {"n": 2, "extra_messages": [SEA]},
    **_each("extra_messages", STORY, [STORY, []]),
    "extra_messages, a long one": {"extra_messages": [STORY * 2001]},
    "extra_messages, a message without a text": {
        "extra_messages": [STORY, [*STORY, {"role": "user"}]]
    },
    "extra_messages, too many": {"extra_messages": [STORY] * 65},
    **_each("top_logprobs", 3, 21, -1, True),
    **_each("logprobs", 3, True),
    "top_logprobs without logprobs": {"top_logprobs": 5, "logprobs": False},
    "top_logprobs of allowed tokens": {
        "top_logprobs": 5,
        "allowed_token_ids": [5],
        "max_tokens": 1,
    },
    "scores without a limit": {"logprobs": True, "max_tokens": None},
    "allowed tokens, streamed": {"allowed_token_ids": [5], "max_tokens": 1, "stream": True},
    "scores of two tokens": {"logprobs": True, "max_tokens": 2},
    "scores, streamed": {**_SCORED, "stream": True},
    "scores, n": {**_SCORED, "n": 2},
    "scores, constrained": {**_SCORED, "response_format": {"type": "json_object"}},
    "scores, steered without a word": {**_SCORED, **_steered(ONE)},
    "scores with an intensity": {**_SCORED, "steering_intensity": 1, "score_steered": True},
    "scores with a report": {**_SCORED, "return_steering_report": True},
    "scores with told": {**_SCORED, "return_logprobs": {}, "return_readings": ["{vector sea}"]},
    "scores, too cold": {**_SCORED, "temperature": 1e-5},
    "scores, an id over the vocabulary": {"allowed_token_ids": [10**6], "max_tokens": 1},
    "scores, a negative id": {"allowed_token_ids": [-1], "max_tokens": 1},
    **_each("response_format", 3, {}, {"type": "xml"}, {"type": "json_schema"}),
    "a format with an unknown field": _form(type="json_object", strict=True),
    "a format of text with a schema": _form(type="text", json_schema={"name": "a", "schema": {}}),
    "a schema without a name": _form(type="json_schema", json_schema={"schema": PET}),
    "a schema with too long a name": {"response_format": schema(PET, "n" * 65)},
    "a schema with an unknown field": {"response_format": schema(PET, kind="pet")},
    "a schema that is not supported": {
        "response_format": schema({"not": {}, "properties": {"a": {"if": {}}}})
    },
    "a schema of nothing": {"response_format": schema(False)},
    "a schema without documents": {
        "response_format": schema({"type": "integer", "minimum": 3, "maximum": 1})
    },
    "a format, streamed": {"response_format": {"type": "json_object"}, "stream": True},
    "a format with a stop": {"response_format": {"type": "json_object"}, "stop": "."},
}

TEXT: Options = {
    **_each("prompt", None, [], [[]], [5, "a"], ["a", 5], [5, -1], [5, 2**31], [5, True], [1.0]),
    **_each("prompt", [[5], "a"], [5, 1.5], [5, 10**6]),
    "an id over the vocabulary, streamed": {"prompt": [[10**6]], "stream": True},
    "too long a text": {"prompt": "word " * 3000},
    "an empty prompt": {"prompt": "", "add_special_tokens": False},
    "an empty prompt of several": {"prompt": ["a", ""], "add_special_tokens": False},
    "an id over the vocabulary": {"prompt": [[5], [5, 6, 10**6]]},
    "messages in a text": {"prompt": None, "messages": STORY},
    "too many prompts": {"prompt": ["x"] * 129},
    "too long a prompt": {"prompt": [5] * 2000},
    "too long a prompt, streamed": {"prompt": [5] * 2000, "stream": True},
    **_each("n", 2, 0),
    **_each("profile", "sea"),
    **_each("steering_intensity", 1),
    **_each("response_format", {"type": "json_object"}),
    **_each("top_logprobs", 2),
    **_each("logprobs", 21, True, 2, -1, "5"),
    **_each("echo", "yes", 1),
    "scores of two tokens, by the other name": {
        "logprobs": 1,
        "max_tokens": None,
        "max_completion_tokens": 2,
    },
    "scores of zero, of many tokens": {"logprobs": 0, "max_tokens": 50},
    "scores, too cold": {"logprobs": 1, "temperature": 0.0009, "max_tokens": 1},
    "allowed tokens of two tokens": {"allowed_token_ids": [5], "max_tokens": 2},
    "scores, an id over the vocabulary": {"allowed_token_ids": [10**6], "max_tokens": 1},
    "echo without a limit": {"logprobs": 1, "echo": True, "max_tokens": None},
    "no token without echo": {"logprobs": 1, "max_tokens": 0},
    "no token without logprobs": {"echo": True, "max_tokens": 0},
    "no token of the allowed ones": {"echo": True, "max_tokens": 0, "allowed_token_ids": [5]},
    "echo, too cold": {"logprobs": 1, "echo": True, "temperature": 1e-4, "max_tokens": 1},
    "echo of two tokens": {"logprobs": 1, "echo": True, "max_tokens": 2},
    "echo with allowed_token_ids": {
        "logprobs": 1,
        "echo": True,
        "allowed_token_ids": [5],
        "max_tokens": 1,
    },
    "scores, steered without a word": {"logprobs": 1, "max_tokens": 1, **_steered(ONE)},
    "scores with a report": {"logprobs": 1, "max_tokens": 1, "return_steering_report": True},
    "roles of a text": _at({"roles": ["user"]}),
    "activations of several": {"prompt": ["a", "b"], "return_sae_activations": {}},
}

_TOOL = {"type": "web_search"}


def _text(**fields: Any) -> dict[str, Any]:
    return {"text": {"format": fields}}


RESPONSES: Options = {
    **_each("input", None, 3, [], [{"type": "reasoning", "summary": []}]),
    "a call in the input": {"input": [{"type": "function_call", "name": "f"}]},
    "a reference in the input": {"input": [SEA[0], {"type": "item_reference", "id": "x"}]},
    "an image in the input": {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    "an unknown role": {"input": [{"role": "tool", "content": "x"}]},
    "too many messages": {"input": STORY * 2001},
    **_each("instructions", 3),
    **_each("max_output_tokens", 0, 5000, "1"),
    **_each("store", True),
    **_each("background", True),
    **_each("previous_response_id", "resp_1"),
    **_each("conversation", "conv_1"),
    **_each("prompt", {"id": "pmpt_1"}),
    **_each("truncation", "auto"),
    **_each("messages", STORY),
    **_each("n", 2),
    **_each("response_format", {"type": "json_object"}),
    **_each("logprobs", True),
    **_each("metadata", {"a": 1}, {"k" * 65: "v"}, {str(at): "v" for at in range(17)}),
    **_each("include", "all", [3]),
    **_each("top_logprobs", 2, 21),
    "log-probabilities twice": {
        "include": ["message.output_text.logprobs"],
        "return_logprobs": {},
    },
    "tools with their types": {"tools": [_TOOL, {"type": "function", "name": "f"}, _TOOL]},
    **_each("text", 3, {"format": {"type": "xml"}}),
    "a format of text with a schema": _text(type="text", schema={}),
    "a schema without a name": _text(type="json_schema", schema=PET),
    "a schema without a schema": _text(type="json_schema", name="x"),
    "a schema that is not supported": _text(type="json_schema", name="x", schema={"not": {}}),
    "a format with an unknown field": _text(type="json_object", strict=True),
    "a format, streamed": {**_text(type="json_object"), "stream": True},
    "a format with a stop": {**_text(type="json_object"), "stop": "."},
}

EMBEDDINGS: Options = {
    **_each("input", None, "", [], ["a", ""], 5, [5, 6], [[5]], ["a", 5]),
    "too many texts": {"input": ["a"] * 129},
    "too long a text": {"input": ["a", "word " * 1100]},
    **_each("encoding_format", "hex", 3),
    **_each("model", None, "nobody", "demo@sea"),
    **_each("dimensions", 3),
    **_each("sae_steering", {"features": []}),
    "a seed": SEEDED,
}

BODIES: dict[str, str] = {
    "no body": "",
    "half an object": "{",
    "a list": "[]",
    "a text": '"x"',
    "no number": '{"model": NaN}',
    "a key twice": '{"model": "demo", "model": "demo"}',
    "a key twice inside": '{"model": "demo", "messages": [{"role": "user", "role": "user"}]}',
    "nested too deep": "[" * 100_000,
    "an empty object": "{}",
}
"""Bodies as texts."""

HEADERS: dict[str, dict[str, str]] = {
    "another media type": {"content-type": "text/plain"},
    "an unknown strictness": {"X-Service-Strict": "maybe"},
    "an unknown load policy": {"X-Service-Load-Policy": "never"},
}

STRICT: Options = {
    "strict, an unused field": {"user": "anna"},
    "strict, several unused fields": {"user": "anna", "messages": [{**STORY[0], "mood": 1}]},
    "strict, a nearly right name": {"sae_stering": {}},
}
