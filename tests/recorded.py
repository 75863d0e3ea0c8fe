"""A record of an answer of the demo model, as another service might have exported it."""

from __future__ import annotations

from typing import Any

from steerserve import demo

RUN: dict[str, Any] = {
    "request_id": "cmpl-recorded",
    "created_at": "2026-01-05T00:00:00Z",
    "route": "/v1/completions",
    "body": {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 2},
    "seed": 1,
    "seed_chosen": True,
    "model": {
        "name": demo.MODEL_NAME,
        "repository_id": None,
        "revision": None,
        "content_digest": None,
        "quantization": "FP16",
        "dtype": "float32",
        "engine": "checkpoint",
    },
    "saes": [],
    "steering": {
        "state": None,
        "sources": [],
        "values": {},
        "edits": None,
        "preserve_norm": False,
        "changed": False,
    },
    "versions": {"steerserve": "0.0"},
    "machine": {"device": "cpu", "processor": "abacus", "probe": "", "shares_passes": True},
    "settings": {"default_max_tokens": 512, "continuous_batching": False},
    "prompt_tokens": [3],
    "choices": [{"text": "#", "finish_reason": "length", "tokens": 2, "scores": None}],
}
