"""What holds of every generating request: a stream is the blocking answer in pieces, and no stop string is ever in it.

Requests are seeded or greedy, so that asking twice is fair. They go to the demo model, which writes English, and to a
random model, whose text is mostly bytes that are no characters.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steerserve import demo
from tests.openai.conftest import TEMPLATE
from tests.service import Running, add_model, running
from tests.worker import models
from tests.worker.running import with_bos

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BOUNDED = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
HALF = "\ufffd"
"""What stands for bytes that are no character."""


@dataclass(frozen=True)
class Model:
    """A loaded model and the service that has it."""

    live: Running
    name: str


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    root = tmp_path_factory.mktemp("wild")
    folder = with_bos(models.save("llama", root / "model"), TEMPLATE)
    with running(root / "home") as live:
        model_id = add_model(live, folder, "wild")
        live.data("POST", f"/api/models/{model_id}/load?wait=true")
        yield Model(live, "wild")


@pytest.fixture(params=["demo", "wild"])
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "demo":
        return Model(request.getfixturevalue("shared"), demo.MODEL_NAME)
    return request.getfixturevalue("wild")


openings = st.sampled_from(["One day", "The sea", '"Are you', "In the morning he", "She said: "])
foreign = st.sampled_from(
    ["🎉🦊" * 4, "日本語の文章、", "e\u0301\u0302 é ß", "👩‍👩‍👧‍👦 👍🏽", "\t\n\r\n\x00 \x7f"]
)
texts = (
    openings | foreign | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
)
slices = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=3)
"""Where stop strings are cut out of the text that they are to end."""
rarities = st.sampled_from(["", "", "\n", "🦊", "é", HALF, "no such words"])
sampling = st.one_of(
    st.just({"temperature": 0}),
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**32 - 1),
            "temperature": st.sampled_from([0.5, 1, 2]),
            "top_p": st.sampled_from([0.5, 1]),
        }
    ),
)
partials = st.sampled_from([[], [{"role": "assistant", "content": "Once"}]])
# the strongest reward for what was already there: a foreign text is then copied, byte by byte
echoing = st.sampled_from([{}, {"frequency_penalty": -2, "presence_penalty": -2}])


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """The fields that text and chat requests share, without stop strings."""
    return {"max_tokens": draw(st.integers(1, 16))} | draw(sampling) | draw(echoing)


def stops(text: str, places: list[tuple[int, int]], rarity: str) -> list[str]:
    """Parts of a text, most of them there and some beginning within others, and perhaps one that is not."""
    found = [text[start % len(text) :][:length] for start, length in places if text]
    return [*found, rarity] if rarity else found


class Choice:
    """One choice of an answer, whole or joined from a stream."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.finish: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


class Answer:
    """What both forms of an answer tell."""

    def __init__(self) -> None:
        self.choices: defaultdict[int, Choice] = defaultdict(Choice)
        self.usage: dict[str, int] | None = None

    @property
    def told(self) -> Any:
        choices = {i: (choice.text, choice.finish) for i, choice in self.choices.items()}
        return choices, self.usage


def whole(model: Model, path: str, body: dict[str, Any]) -> Answer:
    found = model.live.post(path, {**body, "model": model.name}).json()
    answer = Answer()
    for choice in found["choices"]:
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        answer.choices[choice["index"]].deltas = [text]
        answer.choices[choice["index"]].finish = choice["finish_reason"]
    answer.usage = found["usage"]
    return answer


def streamed(model: Model, path: str, body: dict[str, Any]) -> Answer:
    """The answer of a stream, read from its bytes: events of one line of UTF-8 JSON, then `[DONE]`."""
    raw = model.live.post(path, {**body, "model": model.name, "stream": True}).content
    *events, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    answer = Answer()
    for event in events:
        assert event.startswith(b"data: ")
        chunk = json.loads(event.removeprefix(b"data: ").decode("utf-8", errors="strict"))
        for choice in chunk["choices"]:
            into = answer.choices[choice["index"]]
            assert into.finish is None, "a choice goes on after its end"
            delta = choice["text"] if path == TEXT else choice["delta"].get("content", "")
            delta.encode("utf-8", errors="strict")
            into.deltas.append(delta)
            into.finish = choice["finish_reason"]
        if "usage" in chunk:
            assert answer.usage is None, "the usage is told once"
            answer.usage = chunk["usage"]
    return answer


def check(answer: Answer, body: dict[str, Any]) -> None:
    """What must hold of an answer by itself."""
    assert answer.usage is not None
    assert answer.usage["total_tokens"] == sum(list(answer.usage.values())[:2])
    assert answer.usage["completion_tokens"] <= body["max_tokens"] * len(answer.choices)
    for choice in answer.choices.values():
        assert choice.finish in ("stop", "length")
        assert not [stop for stop in body.get("stop", ()) if stop in choice.text]


@BOUNDED
@given(
    fields=requests(),
    prompts=st.lists(texts, min_size=1, max_size=2),
    places=slices,
    rarity=rarities,
)
def test_a_text_stream_is_the_blocking_answer_in_pieces(
    model: Model,
    fields: dict[str, Any],
    prompts: list[str],
    places: list[tuple[int, int]],
    rarity: str,
) -> None:
    free = {**fields, "prompt": prompts}
    uncut = whole(model, TEXT, free)
    assert set(uncut.choices) == set(range(len(prompts)))
    body = {**free, "stop": stops(uncut.choices[0].text, places, rarity)}
    blocking, stream = whole(model, TEXT, body), streamed(model, TEXT, body)
    assert stream.told == blocking.told
    check(blocking, body)
    check(stream, body)


@pytest.mark.shows("chat-parameters.9", "chat-parameters.21")
@BOUNDED
@given(fields=requests(), text=texts, partial=partials, places=slices, rarity=rarities)
def test_a_chat_stream_is_the_blocking_answer_in_pieces(
    model: Model,
    fields: dict[str, Any],
    text: str,
    partial: list[dict[str, str]],
    places: list[tuple[int, int]],
    rarity: str,
) -> None:
    free = {**fields, "messages": [{"role": "user", "content": text}, *partial]}
    uncut = whole(model, CHAT, free)
    body = {**free, "stop": stops(uncut.choices[0].text, places, rarity)}
    blocking, stream = whole(model, CHAT, body), streamed(model, CHAT, body)
    assert stream.told == blocking.told
    check(blocking, body)
    check(stream, body)


@BOUNDED
@given(fields=requests(), text=texts, place=st.tuples(st.integers(0, 30), st.integers(1, 6)))
def test_a_stop_string_cuts_the_text_where_it_begins(
    model: Model, fields: dict[str, Any], text: str, place: tuple[int, int]
) -> None:
    free = {**fields, "prompt": text}
    uncut = whole(model, TEXT, free).choices[0]
    for stop in stops(uncut.text, [place], ""):
        cut = whole(model, TEXT, {**free, "stop": stop}).choices[0]
        assert cut.text == uncut.text[: uncut.text.index(stop)]
        assert cut.finish == "stop"


@BOUNDED
@given(seed=st.integers(0, 2**32 - 1), text=texts)
def test_no_piece_is_half_a_character(wild: Model, seed: int, text: str) -> None:
    """Bytes that are no character are let go in long runs only, when it is certain that none begins with them."""
    body = {"prompt": text, "seed": seed, "max_tokens": 60}
    stream = streamed(wild, TEXT, body).choices[0]
    assert HALF not in stream.deltas
