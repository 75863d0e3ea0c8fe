"""Text and chat completions over a real service and the demo model."""

from __future__ import annotations

from steerserve import demo
from tests.service import Running


def test_a_stream_joins_to_the_blocking_answer(shared: Running) -> None:
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 40, "seed": 11}
    events = shared.stream("/v1/completions", body)
    assert events[-1] == "[DONE]"
    joined = "".join(c["text"] for e in events[:-1] for c in e["choices"])
    whole = shared.complete("One day", max_tokens=40, seed=11)
    assert joined == whole["choices"][0]["text"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-2]["usage"] == whole["usage"]
