"""What the scripted engine answers."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from typing import Any

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.spelling import ReadBack, Spell
from steerserve.messages.tokenizing import Spelling
from steerserve.parts.divergence.form import DIVERGENCE, Diverged
from steerserve.parts.part import pack
from steerserve.parts.pool.form import POOL, Pooled
from steerserve.rules.saes.sites import ModelSite
from tests import asking

HIDDEN, LAYERS, WIDTH = 8, 4, 16


FACTS = m.Loaded(
    id=1,
    architecture="TinyForCausalLM",
    parameters=1234,
    dtype="float32",
    device="cpu",
    memory_mb=7,
    memory_by_device_mb={"cpu": 7},
    context_length=64,
    layers=LAYERS,
    hidden_size=HIDDEN,
    vocabulary=32,
    kv_tokens=512,
    kv_bytes_per_token=16,
    chat_template=m.ChatTemplate("{{ messages }}"),
    sites=[
        ModelSite(site, tuple(range(LAYERS)), HIDDEN, None, "layers.{layer}", True)
        for site in ("resid_pre", "resid_post")
    ],
)


CLAIMS = m.Claims(
    format="saelens",
    architecture="standard",
    d_in=HIDDEN,
    d_sae=WIDTH,
    dtype="float32",
    hook_name=None,
    site="resid_post",
    layer=1,
    model_name=None,
    l0=None,
    size_bytes=1,
)


STEPS: Mapping[type[m.Question[Any]], str] = {
    m.Inspect: "inspect",
    m.Explore: "explore",
    m.Promote: "promote",
    m.Fit: "fit",
    m.Measure: "measure",
    m.ReadStatistics: "statistics",
    m.ResetStatistics: "reset_statistics",
}
"""The step of the scripted engine that answers each question."""


def size_of(plan: m.Plan) -> float:
    """The size of what a plan adds first."""
    assert isinstance(plan, m.Overlay)
    values = [abs(value) for features in plan.values.values() for value in features.values()]
    return [*values, *(abs(edit.target.offset) for edit in plan.edits), 0.0][0]


def outcomes_of(request: m.Request, noise: float) -> tuple[str | None, list[m.Outcome]] | None:
    """The step and the outcomes of a request that no test directs; None for one that writes, or is refused."""
    choices = range(len(request.prompts))
    match request.goal:
        case m.ReadStates(layers=layers):
            states = bytes(4 * HIDDEN * len(layers))
            return "states", [m.StatesRead(1, choice, 1, states) for choice in choices]
        case m.Patch(cells=cells, noise=noises):
            metrics = [float(cell.positions[0]) for cell in cells]
            return "patches", [m.Patched(1, 0, 2.0, 0.0, metrics, [noise] * len(noises))]
        case m.ReadActivations(keys=keys):
            values = [m.FeatureValues() for _ in keys]
            return "activations", [m.ActivationsRead(1, choice, 3, values) for choice in choices]
    if (divergence := asking.form(request, DIVERGENCE)) is not None:
        words = [[-1.0] * 2 for _ in divergence.words]
        # the divergence is the strength of the first value or edit
        size = size_of(request.plan)
        sites = [array("f", [size] * HIDDEN).tobytes() for _ in divergence.sites]
        parts = {DIVERGENCE.name: pack(Diverged([1, 2], [size] * 2, [-2.0] * 2, words, sites))}
        return "diverge", [m.Piece(1, c, "a b", 2, "length", parts=parts) for c in choices]
    if POOL.name in request.parts:
        return "pool", [pooled(choice, prompt) for choice, prompt in enumerate(request.prompts)]
    if isinstance(request.goal, m.Score | m.Generate):
        return None
    return None, [m.Embedded(1, choice, bytes(4 * HIDDEN)) for choice in choices]


def pooled(choice: int, prompt: m.Prompt) -> m.Scored:
    assert isinstance(prompt, m.Text)
    feature, value = struct.pack("<I", len(prompt.text)), struct.pack("<f", 1.0)
    parts = {POOL.name: pack(Pooled(3, feature, value))}
    return m.Scored(1, choice, m.TokenScore(1, "a", 0.0), [], parts=parts)


def promoted(question: m.Promote) -> m.Promoted:
    """The answer of the scripted engine, one feature at a time: feature 0 promotes the letters a, b, ... with the
    values 1, 1/2, ..., feature 1 the letters b, c, ..., and each suppresses its letters with the negative values."""
    first = ord("a") + question.features[0]
    tokens = [first + i for i in range(question.top)]
    values = [1 / (i + 1) for i in range(question.top)]
    return m.Promoted(
        1,
        1,
        question.top,
        struct.pack(f"<{2 * question.top}i", *tokens, *tokens),
        struct.pack(f"<{2 * question.top}f", *values, *(-value for value in values)),
        {token: chr(token) for token in tokens},
    )


def spelling(question: m.Question[Any]) -> Spelling | None:
    match question:
        case Spell(prompt=m.Text(text=text)):
            ids = [ord(letter) for letter in text]
        case ReadBack(ids=ids):
            text = "".join(map(chr, ids))
        case _:
            return None
    return Spelling(text, ids, list(text), list(range(len(ids))))


def attached_at(layer: int) -> m.Attached:
    return m.Attached(f"model.layers.{layer}", 3, HIDDEN, WIDTH, ["from the engine"], {})


def engine_gone(reason: str) -> Refusal:
    return Refusal("ENGINE_UNAVAILABLE", f"{reason}; the model has to be loaded again")
