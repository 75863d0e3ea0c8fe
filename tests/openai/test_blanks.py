"""Answers, scores and tokens of a model whose decoder strips the blank at the beginning of what it decodes, as those of
Llama 2, Mistral 7B and Phi-3 do."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.openai.conftest import Zoo
from tests.service import Running
from tests.worker import models
from tests.worker.running import with_special

TEXT = "/v1/completions"
FOLLOWS = {"▁one": "▁two", "▁two": "▁three", "▁three": "<end>", "<end>": "▁one"}


@pytest.fixture(scope="module")
def counting(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """The service with a model that counts to three again and again, with `<end>` behind each three."""
    folder = tmp_path_factory.mktemp("counting")
    tokenizer = models.sentence_pieces()
    zoo.folders["counting"] = models.save_chain(folder, tokenizer, FOLLOWS)
    with_special(folder, tokenizer)
    zoo.register("counting")
    yield zoo
    zoo.empty()
    zoo.live.data("DELETE", f"/api/models/{zoo.ids.pop('counting')}")
    del zoo.folders["counting"]


@pytest.fixture
def live(counting: Zoo) -> Running:
    counting.load("counting")
    return counting.live


def written(live: Running, prompt: Any = "one two", **fields: Any) -> dict[str, Any]:
    asked = {"model": "counting", "prompt": prompt, "temperature": 0, "max_tokens": 6}
    answer: dict[str, Any] = live.post(TEXT, asked | fields).json()
    return answer


@pytest.mark.parametrize(("prompt", "text"), [("one two", " three"), ("", "one")])
def test_the_texts_of_written_tokens_join_to_the_answer(
    live: Running, prompt: str, text: str
) -> None:
    answer = written(live, prompt, max_tokens=9, return_logprobs={"top": 2})
    told = answer["service"]["logprobs"]
    whole = answer["choices"][0]["text"]
    assert whole.startswith(text)
    assert "".join(one["token"] for one in told if one["token"] != "<end>") == whole
    for one in told:
        listed = {near["token_id"]: near["token"] for near in one["steered"]["top"]}
        assert listed[one["token_id"]] == one["token"]


def test_an_answer_keeps_the_blank_behind_a_special_token(live: Running) -> None:
    (choice,) = written(live, max_tokens=5)["choices"]
    assert choice["text"] == " three one two three"


def test_the_scores_of_a_prompt_join_to_its_text(live: Running) -> None:
    text = "one two three"
    ids = live.data("POST", "/api/tokenize", {"text": text})["ids"]
    asked = {"max_tokens": 1, "logprobs": 2, "echo": True}
    for prompt, first in ((text, "one"), (ids[1:], "one"), (ids, " one"), ("one", "one")):
        (choice,) = written(live, prompt, **asked)["choices"]
        told, whole = choice["logprobs"], choice["text"]
        tokens = [token for token in told["tokens"] if token != "<bos>" or "<bos>" in whole]
        assert "".join(tokens) == whole
        assert first in told["tokens"]
        for token, at in zip(told["tokens"], told["text_offset"], strict=True):
            assert whole.startswith(token, at) or token == "<bos>"
        for token, top in zip(told["tokens"], told["top_logprobs"], strict=True):
            assert top is None or token in top
    read = live.data("POST", "/api/tokenize", {"text": text})
    assert read["pieces"] == ["<bos>", "one", " two", " three"]
    assert read["offsets"] == [0, 0, 3, 7]
    assert live.data("POST", "/api/detokenize", {"ids": ids[1:]})["pieces"] == read["pieces"][1:]


def test_a_scored_token_has_the_text_that_a_completion_writes(live: Running) -> None:
    for prompt in ("one two", ""):
        (whole,) = written(live, prompt, max_tokens=1)["choices"]
        (scored,) = written(live, prompt, max_tokens=1, logprobs=1)["choices"]
        assert scored["text"] == whole["text"] == scored["logprobs"]["tokens"][0]


@pytest.mark.parametrize(
    ("prompt", "after", "first"),
    [("one two", " three", 3), ("one two", "two three", 7), ("one", " three", 3)],
)
def test_an_edit_acts_after_a_text_with_which_the_answer_begins(
    live: Running, prompt: str, after: str, first: int
) -> None:
    """The prompt has a token in front of it."""
    data = base64.b64encode(np.full(64, 1e-4, "<f4").tobytes()).decode()
    edit = {"op": "add", "value": 1, "vector": {"layer": 1, "data": data}}
    asked = {"edits": [edit | {"positions": {"after_text": after}}]}
    answer = written(live, prompt, interventions=asked, return_steering_report=True, max_tokens=7)
    assert answer["steering_report"]["edits"][0]["first"] == first


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("<end>", " three", 2),
        ([" three<end>"], "", 2),
        (["<end> one t", "nothing"], " three", 4),
        ("<end> two", " three one two three", 6),
        ("three one", " ", 3),
        ("<bos>", " three one two three", 6),
    ],
)
def test_a_stop_text_may_have_a_special_token_that_is_no_eos(
    live: Running, stop: str | list[str], text: str, tokens: int, *, is_stream: bool
) -> None:
    asked = {"model": "counting", "prompt": "one two", "temperature": 0, "max_tokens": 6}
    if is_stream:
        *chunks, last, done = live.stream(TEXT, asked | {"stop": stop})
        assert done == "[DONE]"
        whole = "".join(chunk["choices"][0]["text"] for chunk in [*chunks, last])
        reason, count = last["choices"][0]["finish_reason"], last["usage"]["completion_tokens"]
    else:
        answer = written(live, stop=stop)
        ((choice,), count) = answer["choices"], answer["usage"]["completion_tokens"]
        whole, reason = choice["text"], choice["finish_reason"]
    assert (whole, count) == (text, tokens)
    assert reason == ("stop" if tokens < 6 else "length")
