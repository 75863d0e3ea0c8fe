"""The options of requests, each as the fields that ask for it.

An option either shapes the text of an answer, or only reads something of the model beside the text.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from steerserve import messages as m
from steerserve.nouns.patches.rules import Cell, Metric
from steerserve.parts.activations.form import Tap
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads, RawSite
from steerserve.parts.divergence.form import Divergence
from steerserve.parts.logprobs.form import Logprobs
from steerserve.parts.pool.form import Pool
from steerserve.parts.response_format.form import ResponseFormat
from steerserve.rules.steering.edits import (
    KINDS,
    LAST_PROMPT,
    PROMPT_MAX,
    PROMPT_MEAN,
    RESIDUAL,
    UNIT,
    AllOf,
    AnyOf,
    Condition,
    Edit,
    Feature,
    Source,
    Target,
    When,
)
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import ALL, NAMES, Positions, Selection, Span
from steerserve.rules.steering.vector import Direction
from tests import asking
from tests.net.rows.engine import KEY

Fields = dict[str, Any]

WIDTH = 32
LENGTH = 264
"""The tokens of a prompt: enough to be kept as the beginning of another."""

MAX_TOKENS = 7
MASKED_TOKENS = 12
SPECIAL = 1
"""A special token of the checkpoint, which each prompt has once."""


def prompt(number: int, size: int = LENGTH) -> m.Tokens:
    """A prompt of this number, which has the contents of two messages."""
    draw = random.Random(number)
    ids = [draw.randrange(5, 300) for _ in range(size)]
    ids[size // 5] = SPECIAL
    spans = Span("user", size // 4, size // 3), Span("assistant", size // 2, size // 2 + 9)
    return m.Tokens(ids, spans=spans)


def direction(seed: int, layer: int = 0, size: float = 2.0) -> Direction:
    """A random direction of the stream after a layer."""
    draw = random.Random(seed)
    numbers = [draw.gauss(0.0, size) for _ in range(WIDTH)]
    return Direction(layer, "resid_post", struct.pack(f"<{WIDTH}f", *numbers))


def overlay(*edits: Edit, values: Mapping[str, dict[int, float]] | None = None) -> Fields:
    """The fields of a request that is steered so, and that counts where its edits act."""
    numbered = tuple(structs.replace(edit, number=at) for at, edit in enumerate(edits))
    return {"plan": m.Overlay(None, dict(values or {}), numbered), "counted": ()}


def tap(positions: str | tuple[int, int] = "all", **fields: Any) -> Fields:
    """The fields of a request that reads activations."""
    asked = {"features": None, "top_k": 3, "is_before": False, "max_entries": 100_000} | fields
    return {"tap": Tap(KEY, positions=positions, **asked)}


def raw(positions: Positions = ALL, **fields: Any) -> RawReads:
    """The values of the stream after both layers, and the logits."""
    asked = {"is_before": False, "dtype": "float32", "is_listed": False, **fields}
    sites = (
        RawSite("", "resid_post", 0),
        RawSite("", "resid_post", 1),
        RawSite("", "logits", None),
    )
    return RawReads(sites, positions, max_bytes=1 << 30, all_max_bytes=1 << 30, **asked)


def raw_reads(number: int, place: int, **fields: Any) -> dict[str, m.Request]:
    """The requests that read or write values of sites, each after the prompt of this place."""
    one = [prompt(place)]
    patch = m.Patch(
        source=list(prompt(place + 1).ids),
        cells=[Cell("resid_post", 0, (2,)), Cell("resid_post", 1, (2, 30))],
        noise=[Cell("resid_post", 0, (2,))],
        metric=Metric("kl"),
    )
    pieces = ACTIVATIONS_RAW.ask(raw(piece_bytes=4096))
    return {
        "raw": generate(number, place, raw=raw(), **fields),
        "raw long": generate(number, place, raw=raw(), **{**fields, "max_tokens": 70}),
        **{name: generate(number, place, **its, **fields) for name, its in _replaced().items()},
        "patch": asking.read(number, one, patch),
        "pieces": asking.read(number, one, m.ReadParts(), parts=pieces),
    }


def _replaced() -> dict[str, Fields]:
    """Values of a site in the place of others: one everywhere, and one for each position."""
    one, two = direction(7), direction(8)
    both = Direction(0, "resid_post", one.data + two.data)
    at = Positions(Selection(prompt_positions=(3, 200)))
    return {
        "replace": overlay(Edit(one, Target(factor=0.5), source=Source())),
        "replace each": overlay(Edit(both, Target(factor=0.0), source=Source(2), positions=at)),
    }


def _feature(op: str, value: float = 2.0, feature: int = 3, **more: Any) -> Edit:
    return Edit(Feature(KEY, feature), KINDS[op].target(value), **more)


def _projection(target: Target, **more: Any) -> Edit:
    return Edit(direction(1), target, **more)


def _features() -> dict[str, Fields]:
    """Each kind of edit of a feature, whole and by a part."""
    whole = {f"feature {op}": overlay(_feature(op)) for op in KINDS}
    return {**whole, "feature half": overlay(_feature("set", 9.0, strength=0.5))}


def _directions() -> dict[str, Fields]:
    """Each kind of edit of a direction."""
    added, other = Target(offset=3.0), direction(2)
    edits = {
        "raw": _projection(Target(offset=0.5)),
        "unit": _projection(added, unit=UNIT),
        "residual": _projection(Target(offset=0.4), unit=RESIDUAL),
        "set": _projection(Target(factor=0.0, offset=4.0)),
        "at_least": _projection(Target(low=2.0)),
        "at_most": _projection(Target(high=-2.0)),
        "scale": _projection(Target(factor=-1.0)),
        "ablate": _projection(Target(factor=0.0)),
        "swap": _projection(Target(factor=2.0), to=other),
        "later": Edit(direction(3, layer=1), added, unit=UNIT),
    }
    return {f"direction {name}": overlay(one) for name, one in edits.items()}


def _conditions() -> dict[str, Fields]:
    """Each kind of condition."""
    reads, other = Feature(KEY, 7), direction(4)
    near, far = Condition(reads, above=0.5), Condition(other, below=0.0)
    whens: dict[str, When] = {
        "token above": near,
        "token below": Condition(reads, below=0.5),
        "direction": Condition(other, above=0.0),
        "held": Condition(reads, above=3.0, hold=3),
        "to the end": Condition(reads, above=5.0, hold=None),
        "prompt max": Condition(reads, above=1.0, over=PROMPT_MAX),
        "prompt mean": Condition(reads, above=0.1, over=PROMPT_MEAN),
        "last prompt": Condition(other, above=-1e6, over=LAST_PROMPT),
        "never": Condition(reads, above=1e6, over=PROMPT_MAX),
        "any": AnyOf((near, far)),
        "all": AllOf((near, AnyOf((far, Condition(reads, above=2.0, hold=2))))),
    }
    return {
        f"when {name}": overlay(_feature("set", 6.0, when=when)) for name, when in whens.items()
    }


def _positions() -> dict[str, Fields]:
    """Each kind of position."""
    selections = {
        **{f"name {name}": Selection(names=(name,)) for name in NAMES},
        "indices": Selection(prompt_positions=(2, -1)),
        "prompt window": Selection(prompt_window=(40, 90)),
        "generated window": Selection(generated_window=(1, 4)),
        "roles": Selection(roles=("user",)),
        "tokens": Selection(tokens=tuple(range(60, 90))),
        "after text": Selection(after_text="?"),
        "special": Selection(special=True),
    }
    told = {name: Positions(one) for name, one in selections.items()}
    told["without"] = Positions(exclude=Selection(prompt_window=(0, 200)))
    return {f"at {name}": overlay(_feature("add", 5.0, positions=at)) for name, at in told.items()}


def _readers() -> dict[str, Fields]:
    """What is read beside the text. A tap names the activations before or after steering."""
    named = {"features": [3, 9, 60], "top_k": 2}
    lists = [[[5, 6], [7]], [[9]]]
    return {
        "tap after": tap(),
        "tap before": tap(is_before=True),
        "tap named": tap("prompt", **named),
        "tap streamed": tap("completion", is_streamed=True),
        "tap last": tap("last"),
        "tap window": tap((250, 268)),
        "readings": {"readings": (direction(5), direction(6, layer=1))},
        "logprobs": {"logprobs": Logprobs(2, True, False, 10_000)},
        "logprobs plain": {"logprobs": Logprobs(2, False, True, 10_000)},
        "logprobs both": {"logprobs": Logprobs(1, True, True, 10_000)},
        "divergence": {"divergence": Divergence(lists)},
        "recording": {"label": "r"},
        "stream": {"is_stream": True},
    }


SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": [12, 345]}}, "required": ["a"],'
    ' "additionalProperties": false}'
)


def _shapers() -> dict[str, Fields]:
    """What shapes the text beside edits."""
    return {
        "greedy": {},
        "sampling": {"temperature": 1.2, "seed": 11},
        "nucleus": {"temperature": 1.0, "top_p": 0.7, "seed": 12},
        "penalty": {"repetition_penalty": 1.8},
        "drawn penalty": {"repetition_penalty": 1.5, "temperature": 1.0, "seed": 13},
        "stops": {"stops": ["tr", "zz"]},
        "mask": {"constraint": ResponseFormat(SCHEMA)},
        "object": {"constraint": ResponseFormat(), "temperature": 1.0, "seed": 14},
        "choices": {"n": 3, "temperature": 1.0, "seed": 15},
        "live": {"plan": m.Follow()},
        "values": overlay(values={KEY: {3: 4.0, 9: -2.5}}),
        "norm": {"plan": m.Overlay(None, {KEY: {3: 4.0}}, (), Modifiers(preserve_norm=True))},
        "several": overlay(
            _feature("set", 5.0),
            _feature("at_least", 3.0, feature=9),
            _projection(Target(factor=0.5)),
            values={KEY: {20: 2.0}},
        ),
    }


READERS = tuple(_readers())

OPTIONS: dict[str, Fields] = {
    **_shapers(),
    **_features(),
    **_directions(),
    **_conditions(),
    **_positions(),
    **_readers(),
    "steered tap": {**overlay(_feature("set", 9.0)), **tap()},
    "steered tap before": {**overlay(_feature("set", 9.0)), **tap(is_before=True)},
    "steered divergence": {**overlay(_feature("set", 9.0)), "divergence": Divergence([[[5]]])},
    "steered logprobs": {
        **overlay(_feature("set", 9.0)),
        "logprobs": Logprobs(2, True, True, 10_000),
    },
}
"""The name of an option -> the fields of a request that has it."""

SAMPLED = frozenset(m.Sampling.__struct_fields__)


def generate(number: int, place: int, **fields: Any) -> m.Request:
    """A request for a short text after the prompt of this place, greedy and unsteered unless told otherwise."""
    wanted = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
    wanted |= {name: value for name, value in fields.items() if name in SAMPLED}
    rest = {name: value for name, value in fields.items() if name not in SAMPLED}
    if "constraint" in rest:
        wanted["max_tokens"] = MASKED_TOKENS
    prompts = rest.pop("prompts", [prompt(place)])
    return asking.generate(number, prompts, m.Sampling(**wanted), **rest)


def others(number: int, place: int) -> dict[str, m.Request]:
    """The requests that write no text, each after the prompt of this place."""
    one = [prompt(place)]
    target = one[0].ids[0]
    named = {"key": KEY, "layer": 0, "top": 5, "target": target}
    goals: dict[str, m.Goal] = {
        "embed": m.Embed(),
        "lens": m.Lens(layers=[0, 1], top=2, max_distributions=4096, max_entries=200_000),
        "attribute": m.Attribute(position=-1, against=None, **named),
        "gradient": m.Attribute(position=30, against=7, method="gradient", **named),
        "states": m.ReadStates(layers=[0, 1], site="resid_post", places=m.Places("mean")),
        "activations": m.ReadActivations(keys=[KEY]),
    }
    steered = m.Overlay(None, {KEY: {3: 4.0}})
    return {
        "score": asking.score(number, one, top=4),
        "score allowed": asking.score(number, one, 0.7, 0, [5, 6, 7]),
        "score steered": asking.score(number, one, top=4, plan=steered),
        "score echo": asking.score(number, one, top=2, echo=m.Echo(0, 10_000)),
        "score tap": asking.score(number, one, top=2, **tap()),
        **{name: asking.read(number, one, goal) for name, goal in goals.items()},
        **{
            f"pool {how}": asking.score(number, one, pool=Pool(KEY, how))
            for how in ("max", "mean", "last")
        },
    }


OTHERS = tuple(others(0, 0))
