"""Pooled activations of prompts, against the library's own pass and the SAE's maths in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steerserve.parts import encoded
from steerserve.parts.pool.form import Pool
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import formats
from tests.refusals import refusal_of
from tests.worker.live.test_monitor import states
from tests.worker.running import STORY, Bench
from tests.worker.saes import arrays, config_v6, reference, source, write

KEY = "sae@0"
TEXTS = [STORY, "the boats", STORY[:60] + "<eos>" + STORY[60:90]]


def pooled(
    model: Checkpoint, path: Any, kind: str, how: str, *, has_special: bool = False
) -> list[np.ndarray]:
    """The vectors of the texts, from one batch."""
    bench = Bench(model)
    values = arrays(kind, d_in=32)
    sae = formats.load(source(write(path, config_v6(kind, d_in=32), values)))
    pool = Pool(KEY, how, has_special)  # type: ignore[arg-type]
    with bench.attached(KEY, sae):
        rows = bench.score(1, list(TEXTS), pool=pool)
        bench.run()
    found = []
    for row in rows:
        answer = bench.pooled[1, row.choice]
        ids = row.prompt
        kept = [
            at
            for at, token in enumerate(ids)
            if has_special or (at and token not in model.special_tokens)
        ]
        kept = kept[-1:] if how == "last" else kept
        assert answer.positions == len(kept)
        activations, _ = reference(states(model, ids)[kept], values, kind)
        pools = {"max": activations.max(0), "mean": activations.mean(0), "last": activations[-1]}
        vector = np.zeros(len(values["W_dec"]))
        vector[np.frombuffer(answer.features, "<u4")] = np.frombuffer(answer.values, "<f4")
        np.testing.assert_allclose(vector, pools[how], atol=1e-4, rtol=1e-4)
        assert np.all(np.diff(np.frombuffer(answer.features, "<u4").astype(int)) > 0)
        found.append(vector)
    return found


@pytest.mark.parametrize("how", ["max", "mean", "last"])
@pytest.mark.parametrize("kind", ["standard", "topk", "jumprelu"])
def test_vectors_are_pools_of_every_text_position(
    llama: Checkpoint, tmp_path: Any, kind: str, how: str
) -> None:
    assert any(vector.any() for vector in pooled(llama, tmp_path, kind, how))


def test_special_tokens_and_position_0_count_where_asked_for(
    llama: Checkpoint, tmp_path: Any
) -> None:
    left_out = pooled(llama, tmp_path / "a", "standard", "mean")
    counted = pooled(llama, tmp_path / "b", "standard", "mean", has_special=True)
    assert not any(np.allclose(a, b) for a, b in zip(left_out, counted, strict=True))


def test_a_long_text_is_pooled_in_parts(
    llama: Checkpoint, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "ENCODE_POSITIONS", 5)
    monkeypatch.setattr(encoded, "ENCODE_BYTES", 4 * 64 * 3)
    for how in ("max", "mean", "last"):
        pooled(llama, tmp_path / how, "standard", how)


def test_a_text_without_positions_has_an_empty_vector(llama: Checkpoint, tmp_path: Any) -> None:
    bench, sae = (
        Bench(llama),
        formats.load(
            source(write(tmp_path, config_v6("standard", d_in=32), arrays("standard", d_in=32)))
        ),
    )
    with bench.attached(KEY, sae):
        bench.score(1, "", ids=[7], pool=Pool(KEY, "max"))
        bench.run()
    answer = bench.pooled[1, 0]
    assert (answer.positions, answer.features, answer.values) == (0, b"", b"")


def test_a_pool_needs_its_sae(llama: Checkpoint) -> None:
    refused = refusal_of(Bench(llama).score, 1, STORY, pool=Pool("gone@0", "max"))
    assert refused.code == "SAE_NOT_ATTACHED"
