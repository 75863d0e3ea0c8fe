"""The options of a request, each alone: name -> the fields that are sent beside those of the plain body.

Words in braces, such as `{vector sea}`, stand for the ids and the data that a world gives them.
"""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]
Options = dict[str, Fields]

STORY = [{"role": "user", "content": "Tell me a story."}]
SEA = [{"role": "user", "content": "Tell me about the sea."}]
CALM = {"role": "system", "content": "Be calm."}
FEATURE = {"index": 90}
"""The feature of the sea of the attached SAE."""
SEEDED = {"temperature": 0.9, "seed": 7}
INLINE = {"layer": 2, "data": "{data lift}", "dtype": "float32", "shape": [192]}
"""A direction inside the request."""
PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "maximum": 9}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}

# ---------------------------------------------------------------- what all routes take that write text

SAMPLING: Options = {
    "greedy": {},
    "a seed": SEEDED,
    "top_p": {"temperature": 1, "top_p": 0.7, "seed": 11},
    "top_p of zero": {"temperature": 1, "top_p": 0, "seed": 1},
    "temperature of two": {"temperature": 2, "seed": 2**32 - 1},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 2},
    "both penalties": {"frequency_penalty": -0.5, "presence_penalty": 0.5},
    "stop": {"stop": ","},
    "several stops": {"stop": ["never", " "]},
    "no stops": {"stop": []},
    "the limit of tokens": {"max_tokens": 1},
    "a stop and no limit": {"stop": ["."], "max_tokens": None},
    "nulls": {
        **dict.fromkeys(("stream", "temperature", "top_p", "stop", "seed", "n", "logprobs")),
        **dict.fromkeys(("sae_steering", "interventions", "return_logprobs", "return_readings")),
        **dict.fromkeys(("return_sae_activations", "return_steering_report", "profile", "tools")),
        "temperature": 0,
    },
    "values without effect": {"n": 1, "logprobs": False, "tools": [], "logit_bias": {}},
    "unused fields": {"user": "anna", "service_tier": "auto", "né": {"a": 1}},
    "store": {"store": True},
    "no store": {"store": False},
    "metadata": {"metadata": {"run": "one"}},
}

STEERING: Options = {
    "sae_steering": {"sae_steering": {"features": [{"index": 90, "value": 52.5}]}},
    "sae_steering, reported": {
        "sae_steering": {"features": [{"index": 90, "value": 52.5}, {"index": 3, "value": -20}]},
        "return_steering_report": True,
    },
    "sae_steering, replace": {
        "sae_steering": {"features": [{"index": 90, "value": 52.5}], "mode": "replace"},
        "return_steering_report": True,
    },
    "sae_steering, add": {
        "sae_steering": {"features": [{"index": 90, "value": 52.5}], "mode": "add"},
        "return_steering_report": True,
    },
    "sae_steering, no features": {
        "sae_steering": {"features": []},
        "return_steering_report": True,
    },
    "sae_steering, seeded": {
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        **SEEDED,
    },
    "interventions": {
        "interventions": {"edits": [{"op": "add", "feature": FEATURE, "value": 52.5}]},
        "return_steering_report": True,
    },
    "interventions, add": {
        "interventions": {
            "edits": [{"op": "add", "vector": "sea", "value": 20}],
            "mode": "add",
            "preserve_norm": True,
        },
        "return_steering_report": True,
    },
    "interventions, none": {"interventions": {"edits": []}, "return_steering_report": True},
    "report": {"return_steering_report": True},
    "no report": {"return_steering_report": False},
}

TOLD: Options = {
    "return_logprobs": {"return_logprobs": {}},
    "return_logprobs, top": {"return_logprobs": {"top": 2}},
    "return_logprobs, steered and plain": {
        "return_logprobs": {"top": 1, "of": ["steered", "plain"]},
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
    },
    "return_logprobs, plain": {
        "return_logprobs": {"top": 1, "of": ["plain"]},
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
    },
    "return_logprobs, seeded": {"return_logprobs": {"top": 1}, **SEEDED},
    "return_readings": {"return_readings": ["{probe wet}", "{vector sea}"]},
    "return_readings, several layers": {"return_readings": ["{vector lift}"]},
    "return_readings, steered": {
        "return_readings": ["{vector sea}"],
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "return_steering_report": True,
        "return_logprobs": {},
    },
    "activations": {"return_sae_activations": {}},
    "activations, top_k": {"return_sae_activations": {"top_k": 2}},
    "activations, features": {"return_sae_activations": {"features": [3, 55, 90, 55]}},
    "activations, prompt": {"return_sae_activations": {"top_k": 1, "positions": "prompt"}},
    "activations, completion": {"return_sae_activations": {"top_k": 1, "positions": "completion"}},
    "activations, all": {"return_sae_activations": {"top_k": 1, "positions": "all"}},
    "activations, a window": {
        "return_sae_activations": {"top_k": 1, "positions": {"start": 1, "end": 3}}
    },
    "activations, sae_id": {"return_sae_activations": {"top_k": 1, "sae_id": "{sae 3}"}},
    "activations, layer": {"return_sae_activations": {"top_k": 1, "layer": 3}},
    "activations, before the steering": {
        "return_sae_activations": {"features": [90], "read_point": "pre_steering"},
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
    },
    "activations, after the steering": {
        "return_sae_activations": {"features": [90], "read_point": "post_steering"},
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
    },
    "activations, stream_positions": {
        "return_sae_activations": {"top_k": 1, "positions": "all", "stream_positions": True}
    },
    "activations, stream_positions, readings": {
        "return_sae_activations": {
            "top_k": 1,
            "positions": "completion",
            "stream_positions": True,
        },
        "return_readings": ["{vector sea}"],
        "return_logprobs": {},
    },
    "activations, rank": {"return_sae_activations": {"top_k": 2, "rank": "value"}},
    "activations, rank without corpora": {"return_sae_activations": {"rank": "share"}},
}

SHARED: Options = SAMPLING | STEERING | TOLD

# ---------------------------------------------------------------- edits


def edits(*made: Fields, **more: Any) -> Fields:
    """A request with these edits, which asks for the report."""
    return {"interventions": {"edits": list(made), **more}, "return_steering_report": True}


def at(positions: Any) -> Fields:
    """A request that adds at these positions only."""
    return edits({"op": "add", "feature": FEATURE, "value": 40, "positions": positions})


def when(**condition: Any) -> Fields:
    """A request that adds where this condition holds."""
    return edits({"op": "add", "feature": FEATURE, "value": 40, "when": condition})


_READS_VECTOR = {"vector": "sea", "above": 0}
_READS_FEATURE = {"feature": {"index": 50}, "above": 30}

EDITS: Options = {
    "set": edits({"op": "set", "feature": FEATURE, "value": 30}),
    "at_least": edits({"op": "at_least", "feature": FEATURE, "value": 30}),
    "at_most": edits({"op": "at_most", "feature": {"index": 50}, "value": 5}),
    "scale": edits({"op": "scale", "feature": {"index": 50}, "value": 2}),
    "ablate": edits({"op": "ablate", "feature": {"index": 50}}),
    "unit of the activation": edits(
        {"op": "set", "feature": FEATURE, "value": 3, "unit": "activation"}
    ),
    "unit of the maximum": edits({"op": "set", "feature": FEATURE, "value": 0.5, "unit": "max"}),
    "a feature of a named SAE": edits(
        {"op": "add", "feature": {"index": 90, "sae_id": "{sae 3}", "layer": 3}, "value": 30}
    ),
    "a vector": edits({"op": "add", "vector": "sea", "value": 30}),
    "a vector by its id": edits({"op": "add", "vector": "{vector sea}", "value": 30}),
    "a vector without a value": edits({"op": "add", "vector": "sea"}),
    "a vector, raw": edits({"op": "add", "vector": "sea", "value": 30, "unit": "raw"}),
    "a vector, unit": edits({"op": "add", "vector": "sea", "value": 3, "unit": "unit"}),
    "a vector, residual": edits({"op": "add", "vector": "sea", "value": 0.2, "unit": "residual"}),
    "a vector, set": edits({"op": "set", "vector": "sea", "value": 2}),
    "a vector, at_least": edits({"op": "at_least", "vector": "sea", "value": 2}),
    "a vector, at_most": edits({"op": "at_most", "vector": "sea", "value": -1}),
    "a vector, scale": edits({"op": "scale", "vector": "sea", "value": -1}),
    "a vector, ablate": edits({"op": "ablate", "vector": "sea"}),
    "a vector, ablate in part": edits({"op": "ablate", "vector": "sea", "value": 0.5}),
    "a vector, swap": edits({"op": "swap", "vector": "lift", "to": INLINE, "layers": [2]}),
    "a vector of layers": edits({"op": "add", "vector": "lift", "value": 2, "layers": [1, 2]}),
    "a vector of a range": edits(
        {"op": "add", "vector": "lift", "value": 2, "layers": {"from": 1, "to": 2}}
    ),
    "a vector of the request": edits({"op": "add", "vector": INLINE, "value": 4}),
    "several edits": edits(
        {"op": "add", "feature": FEATURE, "value": 30},
        {"op": "ablate", "vector": "sea"},
        {"op": "scale", "feature": {"index": 50}, "value": 0},
        preserve_norm=True,
        mode="replace",
    ),
    "all positions": at("all"),
    "prompt": at("prompt"),
    "last_prompt": at("last_prompt"),
    "generated": at("generated"),
    "output": at("output"),
    "names": at({"names": ["last_prompt", "generated"]}),
    "prompt_positions": at({"prompt_positions": [0, -1]}),
    "prompt_window": at({"prompt_window": [1, 3]}),
    "generated_window": at({"generated_window": [1, 2]}),
    "roles": at({"roles": ["user", "developer"]}),
    "tokens": at({"tokens": [264, 265]}),
    "after_text": at({"after_text": " a"}),
    "exclude": at({"names": ["prompt"], "exclude": {"prompt_positions": [0]}}),
    "special_tokens": at({"special_tokens": False}),
    "where a feature is above": when(**_READS_FEATURE),
    "where a feature is below": when(feature={"index": 50}, below=30),
    "where a vector is above": when(**_READS_VECTOR),
    "where a probe is above": when(probe="wet", above=0),
    "where a probe is below": when(probe="{probe wet}", below=0),
    "where a token holds": when(**_READS_VECTOR, over="token", hold="token"),
    "where the rest holds": when(**_READS_VECTOR, over="token", hold="rest"),
    "where two positions hold": when(**_READS_VECTOR, hold=2),
    "where the prompt's maximum": when(**_READS_FEATURE, over="prompt_max"),
    "where the prompt's mean": when(**_READS_FEATURE, over="prompt_mean"),
    "where the last of the prompt": when(**_READS_FEATURE, over="last_prompt"),
    "where any": when(any=[_READS_FEATURE, _READS_VECTOR]),
    "where all": when(all=[_READS_FEATURE, {"any": [_READS_VECTOR]}]),
}

# ---------------------------------------------------------------- conversations

DIAL: Options = {
    "profile": {"profile": "sea", "return_steering_report": True},
    "profile of edits": {"profile": "mixed", "return_steering_report": True},
    "profile of a cluster": {"profile": "tide", "return_steering_report": True},
    "model@profile": {"model": "demo@sea", "return_steering_report": True},
    "an intensity": {"steering_intensity": 0.5, "return_steering_report": True},
    "a profile with an intensity": {"profile": "sea", "steering_intensity": 0.5},
    "a profile off": {"profile": "sea", "steering_intensity": "off"},
    "a profile at its least": {"profile": "tide", "steering_intensity": "min"},
    "a profile at its most": {"profile": "tide", "steering_intensity": "max"},
    "a profile over its most": {"profile": "tide", "steering_intensity": 2},
    "an unknown profile off": {"profile": "nobody", "steering_intensity": 0},
    "own steering with an intensity": {
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "steering_intensity": 1.5,
        "return_steering_report": True,
    },
    "own edits off": {**edits({"op": "ablate", "vector": "sea"}), "steering_intensity": "off"},
    "template variables": {"chat_template_kwargs": {"mood": "glad", "depth": 2}},
}


def schema(wanted: Any, name: str = "pet", **more: Any) -> Fields:
    """The form of an answer that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": wanted, **more}}


_ROOM = {"max_tokens": 30}

CHAT: Options = {
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 2},
    "both limits of tokens": {"max_tokens": 2, "max_completion_tokens": 2},
    "stream_options": {"stream_options": {"include_usage": True}},
    "stream_options without usage": {"stream_options": {"include_usage": False}},
    "unused parts": {
        "stream_options": {"include_obfuscation": False},
        "messages": [{**STORY[0], "mood": "glad"}],
    },
    "roles": {"messages": [CALM, *STORY, {"role": "assistant", "content": "One day"}, *SEA]},
    "other roles": {
        "messages": [
            {"role": "developer", "content": "Be calm."},
            {"role": "assistant", "content": None},
            {"role": "tool", "content": "ok", "name": "t"},
            *STORY,
        ]
    },
    "parts of content": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Tell "}] * 2},
        ]
    },
    "n": {"n": 2, **SEEDED},
    "n, greedy": {"n": 2},
    "n, steered and reported": {
        "n": 2,
        **SEEDED,
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "return_steering_report": True,
        "return_logprobs": {"top": 1, "of": ["plain", "steered"]},
        "return_readings": ["{vector sea}"],
    },
    "n, with activations": {"n": 2, "return_sae_activations": {}},
    "extra_messages": {"extra_messages": [SEA]},
    "extra_messages, seeded": {
        "extra_messages": [SEA, STORY],
        **SEEDED,
        "return_logprobs": {"top": 0},
        "return_steering_report": True,
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
    },
    "extra_messages, with activations": {
        "extra_messages": [SEA],
        "return_sae_activations": {},
    },
    "json_object": {"response_format": {"type": "json_object"}, **_ROOM},
    "json_schema": {"response_format": schema(PET), **_ROOM},
    "json_schema, strict": {
        "response_format": schema({"const": "a"}, "one a", strict=True, description="An a."),
        **_ROOM,
    },
    "json_schema, of anything": {"response_format": schema(True), "max_tokens": 8},
    "json_schema, n": {"response_format": schema(PET), "n": 2, **SEEDED, **_ROOM},
    "json_schema, steered": {
        "response_format": schema(PET),
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "return_steering_report": True,
        "return_logprobs": {},
        **_ROOM,
    },
    "format of text": {"response_format": {"type": "text"}},
}

_ONE = {"max_tokens": 1}

CHAT_SCORES: Options = {
    "logprobs": {"logprobs": True, **_ONE},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3, **_ONE},
    "top_logprobs as ids": {
        "logprobs": True,
        "top_logprobs": 2,
        "return_tokens_as_token_ids": True,
        "max_completion_tokens": 1,
        "max_tokens": None,
        "temperature": 0.7,
    },
    "allowed_token_ids": {"allowed_token_ids": [264, 265, 264], **_ONE},
    "allowed_token_ids with logprobs": {
        "allowed_token_ids": [264, 265],
        "logprobs": True,
        "top_logprobs": 5,
        **_ONE,
    },
    "scores of several": {
        "logprobs": True,
        "top_logprobs": 1,
        "extra_messages": [SEA],
        **_ONE,
    },
    "scores with activations": {
        "logprobs": True,
        "return_sae_activations": {"top_k": 2, "positions": "all"},
        **_ONE,
    },
    "scores, seeded, with idle fields": {"logprobs": True, **SEEDED, "top_p": 0.5, **_ONE},
    "scores, steered": {
        "logprobs": True,
        "top_logprobs": 2,
        "score_steered": True,
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        **_ONE,
    },
    "scores, steered by a profile": {
        "logprobs": True,
        "top_logprobs": 1,
        "score_steered": True,
        "profile": "sea",
        **_ONE,
    },
    "scores, steered by nothing": {"logprobs": True, "score_steered": True, **_ONE},
    "scores, model@profile": {"model": "demo@sea", "logprobs": True, **_ONE},
    "score_steered without scores": {"score_steered": True},
    "ids without scores": {"return_tokens_as_token_ids": True},
}

# ---------------------------------------------------------------- text completions

_PAIR = ["One day the", "The old fisherman"]

TEXT: Options = {
    "several prompts": {"prompt": _PAIR},
    "several prompts, seeded and reported": {
        "prompt": _PAIR,
        **SEEDED,
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "return_steering_report": True,
        "return_logprobs": {},
        "return_readings": ["{vector sea}"],
    },
    "a list of one prompt": {"prompt": _PAIR[:1]},
    "ids": {"prompt": [374, 264, 1448]},
    "several prompts of ids": {"prompt": [[374, 264], [475]]},
    "ids with special tokens": {"prompt": [374, 264], "add_special_tokens": True},
    "no special tokens": {"add_special_tokens": False},
    "special tokens": {"add_special_tokens": True},
    "echo without logprobs": {"echo": True},
    "stream_options": {"stream_options": {"include_usage": True}},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 2},
    "model@profile": {"model": "demo@sea", "return_steering_report": True},
    "ids without scores": {"return_tokens_as_token_ids": True},
    "score_steered without scores": {"score_steered": True},
}

TEXT_SCORES: Options = {
    "logprobs": {"logprobs": 2, **_ONE},
    "logprobs of zero": {"logprobs": 0, **_ONE},
    "logprobs as ids": {"logprobs": 2, "return_tokens_as_token_ids": True, **_ONE},
    "echo": {"logprobs": 1, "echo": True, **_ONE},
    "echo of the prompt alone": {"logprobs": 1, "echo": True, "max_tokens": 0},
    "echo, as ids, of ids": {
        "prompt": [374, 264, 1448],
        "logprobs": 1,
        "echo": True,
        "return_tokens_as_token_ids": True,
        "max_tokens": 0,
    },
    "echo of several": {"prompt": _PAIR, "logprobs": 1, "echo": True, "max_tokens": 0},
    "allowed_token_ids": {"allowed_token_ids": [264, 265], **_ONE},
    "allowed_token_ids with logprobs": {"allowed_token_ids": [264, 265], "logprobs": 5, **_ONE},
    "scores of several": {"prompt": _PAIR, "logprobs": 1, **_ONE},
    "scores with activations": {
        "logprobs": 1,
        "return_sae_activations": {"top_k": 1, "positions": "prompt"},
        **_ONE,
    },
    "scores, seeded, with idle fields": {
        "logprobs": 1,
        **SEEDED,
        "stop": ["a"],
        "presence_penalty": 1,
        **_ONE,
    },
    "scores, steered": {
        "logprobs": 1,
        "echo": True,
        "score_steered": True,
        "interventions": {"edits": [{"op": "add", "vector": "sea", "value": 20}]},
        **_ONE,
    },
    "scores, model@profile": {"model": "demo@sea", "logprobs": 1, **_ONE},
}

# ---------------------------------------------------------------- responses

_LOGPROBS = "message.output_text.logprobs"

RESPONSES: Options = {
    "instructions": {"instructions": "Be calm."},
    "items": {
        "input": [
            {"role": "developer", "content": "Be calm."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "One day", "annotations": []}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "On.", "mood": "glad"},
        ]
    },
    "include": {"include": [_LOGPROBS]},
    "include with top_logprobs": {"include": [_LOGPROBS, "other"], "top_logprobs": 2},
    "include, steered": {
        "include": [_LOGPROBS],
        "sae_steering": {"features": [{"index": 90, "value": 52.5}]},
        "return_readings": ["{vector sea}"],
        "return_sae_activations": {"top_k": 1},
        "return_steering_report": True,
    },
    "echoed values": {"temperature": 0.25, "top_p": 0.75, "seed": 3, "metadata": {"a": "b"}},
    "text": {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    "json_object": {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 30},
    "json_schema": {
        "text": {
            "format": {
                "type": "json_schema",
                "name": "pet",
                "description": "A pet.",
                "strict": True,
                "schema": PET,
            }
        },
        "max_output_tokens": 30,
    },
    "values that ask for nothing": {
        "store": False,
        "background": False,
        "previous_response_id": None,
        "truncation": "disabled",
        "tools": [],
        "tool_choice": "auto",
        "include": [],
        "top_logprobs": 0,
        "text": None,
    },
    "reasoning": {"reasoning": {"effort": "low"}},
}

# ---------------------------------------------------------------- embeddings

EMBEDDINGS: Options = {
    "a text": {},
    "several texts": {"input": ["One day", "The sea."]},
    "float": {"encoding_format": "float"},
    "base64": {"encoding_format": "base64", "input": ["One day", "The sea."]},
    "unused fields": {"user": "anna", "stream": True, "temperature": 0.5},
    "values without effect": {"n": 1, "dimensions": None, "seed": None},
}

# ---------------------------------------------------------------- comparisons

_OWN = {"features": [{"index": 90, "value": 52.5}]}

COMPARE: Options = {
    "the live steering": {},
    "steering": {"steering": {"90": 52.5}},
    "intensities": {"steering": {"90": 52.5}, "intensities": [0, 0.5, 2]},
    "sae_steering": {"sae_steering": _OWN},
    "interventions": {"interventions": EDITS["several edits"]["interventions"]},
    "profile": {"profile": "mixed"},
    "messages": {"prompt": None, "messages": STORY, "sae_steering": _OWN},
    "a seed": {"sae_steering": _OWN, **SEEDED, "top_p": 0.9},
    "activations": {
        "sae_steering": _OWN,
        "activations": {"top_k": 1, "positions": "all"},
    },
    "an unknown profile": {"profile": "nobody"},
    "two steerings": {"sae_steering": _OWN, "profile": "sea"},
    "an unknown field": {"sae_stering": _OWN},
}

# ---------------------------------------------------------------- beside what an operator steers

BESIDE: Options = {
    "nothing": {"return_steering_report": True},
    "sae_steering": STEERING["sae_steering, reported"],
    "sae_steering, add": STEERING["sae_steering, add"],
    "a named SAE": {"sae_steering": {"features": [{"index": 90, "value": 30, "layer": 3}]}},
    "interventions": edits({"op": "ablate", "vector": "sea"}),
    "interventions, add": STEERING["interventions, add"],
    "interventions, none": STEERING["interventions, none"],
    "a feature": STEERING["interventions"],
    "logprobs": TOLD["return_logprobs, steered and plain"] | {"sae_steering": None},
    "activations": TOLD["activations, top_k"],
    "activations of a layer": TOLD["activations, layer"],
    "activations before the steering": {
        "return_sae_activations": {"features": [90], "read_point": "pre_steering"}
    },
    "activations, rank share": {"return_sae_activations": {"top_k": 2, "rank": "share"}},
    "activations, rank rarity": {
        "return_sae_activations": {"top_k": 1, "rank": "rarity", "positions": "prompt"}
    },
    "unit of the maximum": EDITS["unit of the maximum"],
}
BESIDE_IN_CHATS: Options = {
    "profile": DIAL["profile"],
    "profile of edits": DIAL["profile of edits"],
    "intensity": {"steering_intensity": 0.5, "return_steering_report": True},
    "off": {"steering_intensity": "off", "return_steering_report": True},
    "min": {"steering_intensity": "min"},
    "max": {"steering_intensity": "max"},
    "own steering with an intensity": DIAL["own steering with an intensity"],
    "added steering with an intensity": {
        **STEERING["interventions, add"],
        "steering_intensity": 0.5,
    },
    "scores": {"logprobs": True, "top_logprobs": 1, "max_tokens": 1},
    "scores, steered": {
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 1,
        "score_steered": True,
    },
}
