"""What the tests of steered requests ask, and what they read of the answers."""

from __future__ import annotations

from typing import Any

import httpx2

from steerserve import demo
from tests.service import Running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
STEERING = "/api/saes/steering"
DIAL = "x-service-steering-intensity"
STATE = "x-service-steering-state"
STORY = [{"role": "user", "content": "Tell me a story."}]
FEATURE = 500
LOOPING = (17, 60.0)
"""It makes the model say one word for ever, so that a stream is sure to be long."""

OTHER_LOOP = (3, 60.0)


def own(*features: tuple[int, float], **fields: Any) -> dict[str, Any]:
    return {"features": [{"index": i, "value": v} for i, v in features], **fields}


def chat(live: Running, **fields: Any) -> httpx2.Response:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 20, "temperature": 0}
    return live.post(CHAT, body | fields)


def completion(live: Running, **fields: Any) -> httpx2.Response:
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 20, "temperature": 0}
    return live.post(TEXT, body | fields)


def words(answer: httpx2.Response) -> str:
    (choice,) = answer.json()["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def refused(live: Running, path: str = CHAT, **fields: Any) -> tuple[int, dict[str, Any]]:
    prompt: dict[str, Any] = {"messages": STORY} if path == CHAT else {"prompt": "One day"}
    return live.v1_error(path, {"model": demo.MODEL_NAME, "max_tokens": 4} | prompt | fields)


def steer(live: Running, index: int, value: float) -> None:
    live.data("POST", STEERING, {"feature_idx": index, "value": value})


def clear(live: Running) -> None:
    live.data("DELETE", STEERING)
