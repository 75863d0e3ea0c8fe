"""Working requests for every route, with placeholders for what exists."""

from __future__ import annotations

from typing import Any

from tests.recorded import RUN

JSON = "application/json"
MOST_TOKENS = 4
RESPONSES = "/v1/responses"
GENERATING = ("/v1/chat/completions", "/v1/completions", RESPONSES, "/api/compare")

CHAT = {"model": "{name}", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = {"model": "{name}", "prompt": "One day", "max_tokens": 2, "temperature": 0}
SCORE = {"model": "{name}", "prompt": "One day", "max_tokens": 1, "logprobs": 3}
RESPONSE = {"model": "{name}", "input": "Hello", "max_output_tokens": 2}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
CHAT_FULL = CHAT | {
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["."],
    "seed": 7,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "profile": "calm",
    "steering_intensity": "max",
}
OWN = {"features": [{"index": 1, "value": 2.0, "sae_id": "{sae}"}], "mode": "add"}
READ = {"sae_id": "{sae}", "top_k": 2, "positions": "all", "stream_positions": True}
MEMBER = {"sae_id": "{sae}", "layer": 2}
CLUSTER = {
    "kind": "mistudio.cluster-definition",
    "schema_version": "1",
    "name": "c{unique}",
    "members": [{"feature_idx": 1, "strength": 2.0, "sign": -1, "max_activation": 3.0}],
    "budget": {"intensity": 1.0, "intensity_range": [0.5, 1.5]},
}
PROFILE = {
    "name": "p{unique}",
    "description": "fuzzed",
    "steering": {"1": 2.0, "3": -5},
    "sae_id": "{sae}",
    "layer": 2,
    "model_id": "{model}",
    "intensity": 1.0,
}

VECTOR = {
    "name": "v{unique}",
    "source": "inline",
    "directions": [{"layer": 2, "data": "AACAPwAAAEA=", "shape": [2]}],
    "layer_offset": 0,
}

CORPUS = {
    "name": "fuzzed",
    "source": "inline",
    "texts": ["One day", CHAT["messages"]],
    "max_tokens": 50,
    "context": 16,
    "examples": 2,
}

# documents at or beyond a limit (docs/limits.md): their refusal costs no more than that of small ones
MANY_LAYERS = {
    "kind": "mistudio.circuit-definition",
    "name": "w{unique}",
    "members": [{"layer": layer, "feature": {"feature_idx": 1}} for layer in range(999)],
}
MANY_MEMBERS = CLUSTER | {"members": CLUSTER["members"] * 200}  # type: ignore[operator]
MANY_VALUES = PROFILE | {"steering": {str(index): 1 for index in range(1001)}}

# (weight, method, path, body): placeholders in braces are filled from what exists (`world.py`)
ROUTES: tuple[tuple[float, str, str, Any], ...] = (
    (6, "POST", "/v1/chat/completions", CHAT),
    (3, "POST", "/v1/chat/completions", CHAT | {"stream": True}),
    (2, "POST", "/v1/chat/completions", CHAT_FULL),
    (1, "POST", "/v1/chat/completions", CHAT | {"extra_messages": [CHAT["messages"]], "seed": 1}),
    (1, "POST", "/v1/chat/completions", CHAT | {"n": 2, "temperature": 1}),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 1},
    ),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"return_sae_activations": {"sae_id": "{sae}", "top_k": 2, "positions": "all"}},
    ),
    (
        1,
        "POST",
        "/v1/chat/completions",
        CHAT | {"stream": True, "return_sae_activations": READ, "sae_steering": OWN},
    ),
    (0.3, "POST", "/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
    (3, "POST", RESPONSES, RESPONSE | {"instructions": "Be brief."}),
    (3, "POST", RESPONSES, RESPONSE | {"stream": True, "input": [ITEM]}),
    (1, "POST", RESPONSES, RESPONSE | {"metadata": {"run": "one"}, "sae_steering": OWN, "seed": 1}),
    (0.3, "POST", RESPONSES, RESPONSE | {"text": {"format": {"type": "json_object"}}}),
    (4, "POST", "/v1/completions", TEXT),
    (
        3,
        "POST",
        "/v1/completions",
        TEXT | {"stream": True, "stream_options": {"include_usage": True}},
    ),
    (2, "POST", "/v1/completions", TEXT | {"prompt": ["One day", "The sea"], "seed": 3}),
    (2, "POST", "/v1/completions", SCORE),
    (1, "POST", "/v1/completions", SCORE | {"allowed_token_ids": [1, 2, 3]}),
    (1, "POST", "/v1/completions", SCORE | {"echo": True, "prompt": ["One day", "The sea"]}),
    (1, "POST", "/v1/completions", TEXT | {"sae_steering": OWN}),
    (1, "POST", "/v1/completions", TEXT | {"prompt": [[1, 2, 3], [4]]}),
    (1, "POST", "/api/tokenize", {"text": "One day"}),
    (1, "POST", "/api/tokenize", {"messages": CHAT["messages"]}),
    (1, "POST", "/api/detokenize", {"ids": [1, 2, 3]}),
    (1, "POST", "/api/lens", {"text": "One day", "layers": [0], "top": 2}),
    (
        1,
        "POST",
        "/api/attribution",
        {"text": "One day", "position": -1, "target_token": 5, "against_token": 6, "top": 3},
    ),
    (1, "GET", "/api/runs?limit=5", None),
    (1, "GET", "/api/runs/{run}", None),
    (1, "POST", "/api/runs/{run}/replay", None),
    (0.3, "GET", "/api/runs/export", None),
    (1, "POST", "/api/runs/import", {"runs": [RUN | {"request_id": "cmpl-{unique}"}]}),
    (2, "POST", "/v1/embeddings", {"model": "{name}", "input": ["One day", "The sea"]}),
    (1, "POST", "/v1/embeddings", {"model": "{name}", "input": "Sea", "encoding_format": "base64"}),
    (1, "GET", "/v1/models", None),
    (1, "GET", "/v1/models/{name}", None),
    (
        2,
        "POST",
        "/api/models",
        {"source": "local", "local_path": "{folder}", "custom_name": "m{unique}"},
    ),
    (
        1,
        "POST",
        "/api/models",
        {"source": "huggingface", "repo_id": "acme/tiny", "quantization": "Q8"},
    ),
    (1, "POST", "/api/models/preview", {"repo_id": "acme/tiny", "revision": "main"}),
    (1, "GET", "/api/models", None),
    (1, "GET", "/api/models/{model}", None),
    (1, "DELETE", "/api/models/{model}", None),
    (0.1, "POST", "/api/models/{model}/load", {"gpu": "auto"}),
    (0.1, "POST", "/api/models/{model}/unload", None),
    (1, "POST", "/api/models/{model}/lock", None),
    (1, "POST", "/api/models/{model}/unlock", None),
    (1, "POST", "/api/models/{model}/cancel", None),
    (
        1,
        "POST",
        "/api/models/{model}/lease",
        {"holder": "fuzz", "reason": "fuzz", "ttl_seconds": 1},
    ),
    (1, "GET", "/api/models/{model}/lease", None),
    (1, "POST", "/api/models/{model}/lease/renew", {"ttl_seconds": 1}),
    (1, "DELETE", "/api/models/{model}/lease", None),
    (1, "GET", "/api/saes", None),
    (1, "POST", "/api/saes/preview", {"repository_id": "acme/sae", "layer": 2, "limit": 5}),
    (1, "POST", "/api/saes/download", {"repository_id": "acme/sae"}),
    (1, "POST", "/api/saes/download", {"local_path": "{sae_folder}"}),
    (1, "GET", "/api/saes/{sae}", None),
    (1, "DELETE", "/api/saes/{sae}", None),
    (1, "POST", "/api/saes/{sae}/cancel", None),
    (1, "GET", "/api/saes/{sae}/compatibility?layer=2", None),
    (1, "POST", "/api/saes/{sae}/attach", {"layer": 2, "dtype": "float32", "check": False}),
    (
        0.3,
        "POST",
        "/api/saes/{sae}/attach",
        {"layer": 2, "overrides": {"activation": "topk", "k": 4}},
    ),
    (0.2, "POST", "/api/saes/{sae}/detach", None),
    (1, "GET", "/api/saes/attachment", None),
    (1, "GET", "/api/saes/attachments", None),
    (1, "POST", "/api/saes/attach-set", {"saes": [MEMBER], "dtype": "float16"}),
    (1, "POST", "/api/saes/monitoring", {"enabled": True, "features": [1, 2]}),
    (1, "GET", "/api/saes/{sae}/labels?limit=5&offset=2&query=sea", None),
    (
        0.5,
        "POST",
        "/api/saes/{sae}/labels/suggest",
        {"features": [3], "endpoint": "resident", "examples": 1, "texts": ["One day", "The sea"]},
    ),
    (0.5, "POST", "/api/saes/{sae}/labels/accept", {"features": [3]}),
    (1, "GET", "/api/saes/{sae}/labels/suggestions", None),
    (1, "POST", "/api/saes/{sae}/labels", {"3": "sea", "4": {"label": "boat"}}),
    (0.3, "DELETE", "/api/saes/{sae}/labels", None),
    (1, "DELETE", "/api/saes/{sae}/labels/3", None),
    (1, "POST", "/api/saes/{sae}/features/search", {"query": "sea", "feature_idx": 3, "limit": 4}),
    (1, "GET", "/api/saes/{sae}/features/3", None),
    (1, "GET", "/api/saes/steering?layer=2", None),
    (3, "POST", "/api/saes/steering", {"feature_idx": 3, "value": 2.5}),
    (3, "POST", "/api/saes/steering/batch", {"steering": {"1": 1.0, "2": -1.5}}),
    (1, "POST", "/api/saes/steering/enable", None),
    (1, "POST", "/api/saes/steering/disable", None),
    (1, "DELETE", "/api/saes/steering/3", None),
    (1, "DELETE", "/api/saes/steering", None),
    (1, "GET", "/api/monitoring", None),
    (
        2,
        "POST",
        "/api/monitoring/configure",
        {"enabled": True, "features": [1, 5], "history_size": 9, "top_k": 3},
    ),
    (1, "POST", "/api/monitoring/enable", {"enabled": False}),
    (1, "GET", "/api/monitoring/history?limit=5&request_id=x&features=1,2", None),
    (1, "GET", "/api/monitoring/contexts?feature=3&limit=5", None),
    (1, "DELETE", "/api/monitoring/history", None),
    (1, "GET", "/api/monitoring/statistics?features=1,2", None),
    (1, "DELETE", "/api/monitoring/statistics", None),
    (1, "POST", "/api/monitoring/statistics/top", {"k": 3, "metric": "max"}),
    (1, "GET", "/api/profiles", None),
    (3, "POST", "/api/profiles", PROFILE),
    (1, "POST", "/api/profiles/save-current", {"name": "s{unique}", "description": "fuzzed"}),
    (1, "GET", "/api/profiles/active", None),
    (1, "GET", "/api/profiles/{profile}", None),
    (
        2,
        "PATCH",
        "/api/profiles/{profile}",
        {"steering": {"2": 1.0}, "intensity": 0.5, "description": "x"},
    ),
    (0.3, "DELETE", "/api/profiles/{profile}", None),
    (1, "POST", "/api/profiles/{profile}/activate", {"apply_steering": True}),
    (1, "POST", "/api/profiles/{profile}/deactivate?clear_steering=false", None),
    (1, "GET", "/api/profiles/{profile}/export", None),
    (2, "POST", "/api/profiles/import", PROFILE | {"version": "1.0", "extra": [1]}),
    (1, "POST", "/api/profiles/import", {"kind": "cluster", "members": []}),
    (1, "GET", "/api/corpora", None),
    (1, "POST", "/api/corpora", CORPUS),
    (0.3, "POST", "/api/corpora?wait=true", CORPUS | {"texts": None, "local_path": "/nowhere.txt"}),
    (1, "GET", "/api/corpora/{corpus}", None),
    (0.5, "DELETE", "/api/corpora/{corpus}", None),
    (1, "GET", "/api/vectors", None),
    (2, "POST", "/api/vectors", VECTOR),
    (0.3, "POST", "/api/vectors", VECTOR | {"operation": "project"}),
    (1, "GET", "/api/vectors/{vector}", None),
    (1, "GET", "/api/vectors/{vector}/export?format=gguf", None),
    (1, "GET", "/api/vectors/{vector}/neighbours?limit=2", None),
    (0.3, "DELETE", "/api/vectors/{vector}", None),
    (1, "GET", "/api/clusters", None),
    (2, "POST", "/api/clusters/import?activate=true", CLUSTER),
    (0.2, "POST", "/api/clusters/import", MANY_MEMBERS),
    (0.2, "POST", "/api/circuits/import", MANY_LAYERS),
    (0.2, "POST", "/api/profiles/import", MANY_VALUES),
    (1, "PUT", "/api/clusters/active/intensity", {"intensity": 0.5, "reapply": True}),
    (1, "PUT", "/api/clusters/{profile}/intensity", {"intensity": 1.0}),
    (1, "POST", "/api/clusters/{profile}/activate", None),
    (1, "POST", "/api/clusters/{profile}/deactivate", None),
    (1, "GET", "/api/clusters/{profile}/export", None),
    (0.3, "DELETE", "/api/clusters/{profile}", None),
    (
        0.5,
        "POST",
        "/api/compare",
        {"prompt": "One day", "steering": {"1": 2.0}, "intensities": [0.0, 1.0], "max_tokens": 2},
    ),
    (
        0.5,
        "POST",
        "/api/compare",
        {
            "prompt": "One day",
            "sae_steering": {"features": [{"index": 1, "value": 2.0}]},
            "max_tokens": 2,
            "stream": True,
            "activations": {"top_k": 2, "positions": "all"},
        },
    ),
    (1, "GET", "/api/health", None),
    (1, "GET", "/api/health/ready", None),
    (1, "GET", "/api/health/detailed", None),
    (1, "GET", "/api/health/gpus", None),
    (1, "GET", "/api/health/inference", None),
    (1, "GET", "/api/health/metrics", None),
    (1, "GET", "/api/health/metrics/prometheus", None),
    (1, "GET", "/api/health/circuits", None),
    (1, "POST", "/api/health/circuits/huggingface/reset", None),
    (1, "GET", "/api/health/log?level=INFO&limit=20", None),
    (1, "GET", "/api/health/version", None),
    (0.2, "GET", "/openapi.json", None),
    (0.2, "GET", "/docs", None),
    (0.2, "GET", "/", None),
)
