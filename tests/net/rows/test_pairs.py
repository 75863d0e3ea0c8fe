"""Two options of one request: each gives what it gives alone, wherever the rows stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.parts.divergence.form import Divergence
from steerserve.parts.logprobs.form import Logprobs
from steerserve.parts.response_format.form import ResponseFormat
from steerserve.rules.steering.edits import KINDS, Condition, Edit, Feature
from tests.net.rows.conftest import Start
from tests.net.rows.engine import KEY, Answer, Engine, code_of, text_of
from tests.net.rows.options import SCHEMA, Fields, direction, generate, prompt, tap

pytestmark = pytest.mark.slow

PROMPT = prompt(4, 48)
TOKENS = 7
STOP = "tr"
"""A stop string that the plain text after the prompt contains."""

SET = Edit(
    Feature(KEY, 9), KINDS["set"].target(4.0), when=Condition(Feature(KEY, 7), above=0.5, hold=2)
)
PUSH = Edit(direction(1), KINDS["add"].target(0.3))
SHAPERS: Mapping[str, Fields] = MappingProxyType(
    {
        "sampling": {"temperature": 1.0, "top_p": 0.9, "seed": 3},
        "penalty": {"repetition_penalty": 1.8},
        "stops": {"stops": [STOP]},
        "mask": {"constraint": ResponseFormat(SCHEMA)},
        "values": {"plan": m.Overlay(None, {KEY: {3: 4.0}})},
        "edit": {"plan": m.Overlay(None, {}, (SET,))},
        "push": {"plan": m.Overlay(None, {}, (PUSH,))},
        "live": {"plan": m.Follow()},
    }
)
"""What shapes a text."""

LOGPROBS = {"top": 2, "max_entries": 100_000}
READERS: Mapping[str, Fields] = MappingProxyType(
    {
        "tap after": tap(),
        "tap before": tap(is_before=True),
        "readings": {"readings": (direction(5), direction(6, layer=1))},
        "logprobs": {"logprobs": Logprobs(has_steered=True, has_plain=False, **LOGPROBS)},
        "plain": {"logprobs": Logprobs(has_steered=False, has_plain=True, **LOGPROBS)},
        "divergence": {"divergence": Divergence([[[5, 6], [7]]])},
        "counted": {"counted": ()},
        "recording": {"label": "r"},
        "choices": {"n": 2},
        "stream": {"is_stream": True},
    }
)
"""What is read beside a text."""

KINDS_OF_OPTIONS = {**SHAPERS, **READERS}
APART = [
    {"live", "values"},
    {"live", "edit"},
    {"live", "push"},
    {"tap after", "tap before"},
    {"logprobs", "divergence"},
    {"plain", "divergence"},
]
"""Options that no request has together."""

PAIRS = [pair for pair in combinations(KINDS_OF_OPTIONS, 2) if set(pair) not in APART]


def joined(*names: str) -> Fields:
    """The fields of a request with all of these options."""
    fields: Fields = {}
    for name in names:
        for field, value in KINDS_OF_OPTIONS[name].items():
            fields[field] = _both(fields[field], value) if field in fields else value
    return fields


def _both(one: Any, other: Any) -> Any:
    if isinstance(one, m.Overlay):
        values, edits = {**one.values, **other.values}, (*one.edits, *other.edits)
        return m.Overlay(None, values, edits)
    assert isinstance(one, Logprobs)
    return Logprobs(has_steered=True, has_plain=True, **LOGPROBS)


def request(*names: str) -> Callable[[int], m.Request]:
    """Makes the request with these options."""
    return lambda number: generate(
        number, 0, prompts=[PROMPT], **{"max_tokens": TOKENS, **joined(*names)}
    )


# ---------------------------------------------------------------- what an option gives


def texts(answer: Answer) -> list[Any]:
    """The text of the first choice, piece by piece, and its end. A piece without text has what a part gives."""
    told = ("text", "tokens", "finish", "is_changed")
    return [
        [piece[name] for name in told]
        for piece in answer["Piece 0"]
        if piece["text"] or piece["finish"]
    ]


def of_tokens(answer: Answer, side: str) -> list[Any]:
    written = answer["Piece 0"][-1]["parts"]["logprobs"]
    return [[token["token"], token["text"], token[side]] for token in written]


PARTS: Mapping[str, Callable[[Answer], Any]] = MappingProxyType(
    {
        "tap after": lambda answer: answer["activations 0"],
        "tap before": lambda answer: answer["activations 0"],
        "readings": lambda answer: [piece["parts"]["readings"] for piece in answer["Piece 0"]],
        "logprobs": lambda answer: of_tokens(answer, "steered"),
        "plain": lambda answer: of_tokens(answer, "plain"),
        "divergence": lambda answer: answer["Piece 0"][-1]["parts"]["divergence"],
        "counted": lambda answer: answer["Piece 0"][-1]["parts"]["steering_report"],
        "recording": lambda answer: [
            answer[f"{kind} 0"] for kind in ("Recorded", "SensedSpans", "SensedEdges")
        ],
        "choices": lambda answer: sum(bool(piece["text"]) for piece in answer["Piece 1"]),
        "stream": lambda answer: len(texts(answer)),
    }
)
"""What each reader gives of the first choice of an answer."""


@pytest.fixture(scope="module")
def engine(start: Start) -> Engine:
    return start()


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[tuple[str, ...], Answer]:
    """What each option gives where the request has the engine to itself, and each pair that shapes the text."""
    pairs = [pair for pair in PAIRS if not SHAPERS.keys().isdisjoint(pair)]
    asked = [(), *((name,) for name in KINDS_OF_OPTIONS), *pairs]
    return {names: engine.answer(request(*names)) for names in asked}


@pytest.fixture(scope="module")
def beside(engine: Engine) -> dict[tuple[str, ...], Answer]:
    """What each pair of options gives where all pairs are in one batch."""
    numbers = {engine.next_id(): pair for pair in PAIRS}
    told = engine.told(*(request(*pair)(number) for number, pair in numbers.items()))
    return {pair: told[number] for number, pair in numbers.items()}


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_pair_of_options_gives_what_each_gives_alone(
    alone: dict[tuple[str, ...], Answer],
    beside: dict[tuple[str, ...], Answer],
    pair: tuple[str, str],
) -> None:
    found = beside[pair]
    assert code_of(found) is None
    assert found == alone.get(pair, found)
    shapers = tuple(name for name in pair if name in SHAPERS)
    readers = [name for name in pair if name in READERS]
    assert texts(found) == texts(alone[shapers])
    for reader in readers:
        if shapers:
            assert PARTS[reader](found) is not None
        else:
            assert PARTS[reader](found) == PARTS[reader](alone[reader,])


@pytest.mark.parametrize("name", SHAPERS)
def test_an_option_that_shapes_a_text_does_so(
    alone: dict[tuple[str, ...], Answer], name: str
) -> None:
    plain, found = text_of(alone[()]), text_of(alone[name,])
    if name == "stops":
        assert found == plain.partition(STOP)[0]
    assert found != plain
