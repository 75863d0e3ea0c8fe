"""Generated requests that read sites and replace their values, in shared batches, against a model in numpy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steerserve.messages import Overlay, Suppressed
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads, RawSite
from steerserve.rules.saes.sites import EDITABLE, LOGITS, PATTERN, READABLE, K, Q, V, Z
from steerserve.rules.steering.edits import Edit, Source, direction_target
from steerserve.rules.steering.vector import Direction
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.numpy_llama import Array, NumpyLlama, Place
from tests.worker.positions import drawn_positions, selected
from tests.worker.running import Answer, Bench, open_checkpoint

REQUESTS, TOGETHER = 1000, 50
LIMIT = 1 << 30
LAYERS, HEADS, SHARED, WIDTH, NEURONS = 2, 4, 2, 32, 64
"""The form of the model: `SHARED` heads of queries share one of keys."""
PER_HEAD = (Z, Q, K, V, PATTERN)
TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
FORMS = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


@dataclass(frozen=True)
class Drawn:
    """A request: its prompt, what it reads, and what it replaces, with the values in float32."""

    ids: list[int]
    raw: RawReads
    edits: list[tuple[Edit, Array]]


def heads_of(site: str) -> int:
    return HEADS // SHARED if site in (K, V) else HEADS


def drawn_heads(source: random.Random, site: str) -> tuple[int, ...] | None:
    if site not in PER_HEAD or source.random() < 0.5:
        return None
    heads = range(heads_of(site))
    return tuple(sorted(source.sample(heads, source.randint(1, len(heads)))))


def drawn(source: random.Random) -> Drawn:
    ids = [source.randrange(2, 300) for _ in range(source.randint(2, 14))]
    names = [name for name in READABLE if name != "router_logits"]
    sites = []
    for site in source.sample(names, source.randint(1, 5)):
        layer = None if site == LOGITS else 0 if site == "embed" else source.randrange(LAYERS)
        sites.append(RawSite("", site, layer, drawn_heads(source, site)))
    raw = RawReads(
        tuple(sites),
        drawn_positions(source, ids),
        is_before=source.random() < 0.4,
        dtype=source.choice(["float32", "float32", "float16", "bfloat16"]),
        is_listed=False,
        max_bytes=LIMIT,
        all_max_bytes=LIMIT,
    )
    edits = [drawn_edit(source, ids, number) for number in range(source.choice([0, 0, 1, 2, 3]))]
    return Drawn(ids, raw, edits)


def drawn_edit(source: random.Random, ids: list[int], number: int) -> tuple[Edit, Array]:
    site = source.choice(list(EDITABLE))
    layer = 0 if site == "embed" else source.randrange(LAYERS)
    width = NEURONS if site == "mlp_neurons" else WIDTH * heads_of(site) // HEADS
    values = np.random.default_rng(source.randrange(1 << 30)).normal(size=width).astype("<f4")
    heads = drawn_heads(source, site) or ()
    edit = Edit(
        Direction(layer, site, values.tobytes()),
        direction_target("replace", source.choice([1.0, 1.0, 0.5, 1.5])),
        positions=drawn_positions(source, ids),
        number=number,
        source=Source(1, heads),
    )
    return edit, values


def written(one: Drawn, ids: list[int]) -> Callable[[Place, Array], Array]:
    """What the edits of a request do to the values of a site."""

    def write(place: Place, value: Array) -> Array:
        value = value.copy()
        for edit, values in one.edits:
            assert isinstance(edit.at, Direction)
            if (edit.at.site, edit.at.layer) != place:
                continue
            assert edit.source is not None
            columns = np.ones(len(values), bool)
            if edit.source.heads:
                heads = np.arange(len(values)) * heads_of(edit.at.site) // len(values)
                columns = np.isin(heads, edit.source.heads)
            way = 1.0 - edit.target.factor
            for q in range(len(value)):
                if selected(edit.positions, q, len(one.ids), ids):
                    moved = value[q] + way * (values.astype(float) - value[q])
                    value[q] = np.where(columns, moved, value[q])
        return value

    return write


def numbers(data: bytes, dtype: str) -> Array:
    found = np.frombuffer(data, FORMS[dtype])
    if dtype == "bfloat16":
        return (found.astype("<u4") << 16).view("<f4")
    return found.astype(float)


def check(model: NumpyLlama, one: Drawn, answer: Answer) -> None:
    """The values of an answer are those of the reference, at the positions that were asked for, and so are its tokens
    where the reference is sure of them."""
    chunk = ACTIVATIONS_RAW.read(answer.pieces[-1].parts)
    assert chunk is not None
    ids = [*one.ids, *answer.tokens[:-1]]
    wanted = [q for q in range(len(ids)) if selected(one.raw.positions, q, len(one.ids), ids)]
    assert list(chunk.positions) == wanted
    before, after = model.run(ids, written(one, ids))
    tolerance = TOLERANCE[one.raw.dtype]
    for asked, read in zip(one.raw.sites, chunk.values, strict=True):
        expected = (before if one.raw.is_before else after)[asked.site, asked.layer or 0][wanted]
        if asked.site in PER_HEAD:
            heads = heads_of(asked.site)
            expected = expected.reshape(len(wanted), heads, expected.shape[1] // heads)
            if asked.heads is not None:
                expected = expected[:, list(asked.heads)]
        found = numbers(read.data, one.raw.dtype).reshape(len(wanted), *read.shape)
        size = max(1.0, np.abs(expected).max(initial=0.0))
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * size, err_msg=f"{asked} of {one}"
        )
    logits = after["logits", 0][len(one.ids) - 1 :]
    for row, token in zip(logits, answer.tokens, strict=True):
        best = np.sort(row)[-2:]
        assert row.argmax() == token or best[1] - best[0] < 1e-3 * np.abs(row).max()


@pytest.fixture(scope="module")
def exact(folder: Callable[[str], Path]) -> tuple[Checkpoint, NumpyLlama]:
    """The model, and its reference."""
    path = folder("llama")
    return open_checkpoint(path), NumpyLlama(path)


@pytest.mark.parametrize("part", range(4))
def test_generated_requests_have_the_values_of_a_model_in_numpy(
    exact: tuple[Checkpoint, NumpyLlama], part: int
) -> None:
    model, reference = exact
    source = random.Random(part)
    for _ in range(REQUESTS // TOGETHER // 4):
        bench = Bench(model, kv_tokens=16_384, prefix_tokens=1024)
        asked: list[tuple[Drawn, Answer]] = []
        for number in range(TOGETHER):
            one = drawn(source)
            plan: Any = Overlay(None, {}, tuple(edit for edit, _ in one.edits))
            answer = bench.ask(
                number,
                "",
                ids=one.ids,
                plan=plan if one.edits else Suppressed(),
                raw=one.raw,
                max_tokens=source.randint(1, 6),
            )
            asked.append((one, answer))
        bench.run()
        assert bench.refused == {}
        for one, answer in asked:
            check(reference, one, answer)
