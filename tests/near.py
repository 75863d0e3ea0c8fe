"""Compares greedy texts of one prompt from batches of different shapes. They are equal, except where rounding decides.

The shape of a batch changes the last bits of its logits. If the two most probable tokens differ by less, either token
is right, and the texts after this token cannot be compared.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer

from steerserve import demo
from tests.service import Running

ROUNDING = 0.1
"""If two tokens differ by less than this many nats, either may be the more probable one. The demo model computes in
bfloat16, where neighbouring numbers of the size of its logits are up to 0.0625 apart."""


def check_same_chat(live: Running, messages: list[dict[str, Any]], one: str, other: str) -> None:
    """Check that both texts are right answers to this conversation."""
    shared = _first_difference(one, other)
    if shared is None:
        return
    begun = [*messages, {"role": "assistant", "content": shared}]
    body = {"model": demo.MODEL_NAME, "messages": begun, "max_tokens": 1}
    answer = live.post("/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 2})
    (scored,) = answer.json()["choices"][0]["logprobs"]["content"]
    _check_tie({top["token"]: top["logprob"] for top in scored["top_logprobs"]}, shared, one, other)


def check_same_completion(live: Running, prompt: str, one: str, other: str) -> None:
    """Check that both texts are right completions of this prompt."""
    shared = _first_difference(one, other)
    if shared is None:
        return
    body = {"model": demo.MODEL_NAME, "prompt": prompt + shared, "max_tokens": 1, "logprobs": 2}
    scored = live.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    _check_tie(scored["top_logprobs"][0], shared, one, other)


def _first_difference(one: str, other: str) -> str | None:
    """The text of the tokens with which both texts begin; None if the texts are equal."""
    if one == other:
        return None
    ids = [_tokenizer().encode(text, add_special_tokens=False).ids for text in (one, other)]
    pairs = list(zip(*ids, strict=False))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return str(_tokenizer().decode(ids[0][:same]))


def _check_tie(top: dict[str, float], shared: str, one: str, other: str) -> None:
    """Check that the texts continue with the two most probable tokens, and that these differ by less than ROUNDING."""
    first, second = sorted(top.values(), reverse=True)
    assert first - second < ROUNDING, f"{one!r} and {other!r} differ after {shared!r}: {top}"
    for text in (one, other):
        rest = text[len(shared) :]
        assert any(rest.startswith(token) for token in top), f"{text!r} goes on otherwise: {top}"


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.MODEL_DIR / "tokenizer.json"))
