"""The tokens that features promote, against the weights of the model and of the SAE in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steerserve import messages as m
from steerserve.rules.sensing.promoting import unpacked
from steerserve.worker.hooks import promoting
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.sae.canonical import Sae
from tests.refusals import refusal_of
from tests.worker.conftest import Loaded
from tests.worker.model.test_unembedding import random_norm, reference
from tests.worker.slices import finished

HIDDEN, WIDTH = 32, 24


def sae(**facts: Any) -> Sae:
    draw = torch.Generator().manual_seed(5)
    return Sae(
        torch.randn(HIDDEN, WIDTH, generator=draw),
        torch.zeros(WIDTH),
        torch.randn(WIDTH, HIDDEN, generator=draw) + 1,
        torch.zeros(HIDDEN),
        "relu",
        **facts,
    )


def promote(model: Checkpoint, held: Sae | None, **asked: Any) -> m.Promoted:
    asked = {"key": None if held is None else "sae@0", "top": 4, **asked}
    work = promoting.promote(m.Promote(**asked), Unembedding(model), held, model.decode_token)
    return finished(work)


@pytest.mark.parametrize("variant", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("facts", [{}, {"input_scale": 3.0, "is_centred": True}], ids=str)
def test_features_promote_what_their_steering_raises(
    loaded: Loaded, variant: str, facts: dict[str, Any]
) -> None:
    model, held = loaded(variant), sae(**facts)
    with random_norm(model):
        answer = promote(model, held, features=[3, 20], is_spelled=True)
        rows = torch.stack([held.direction({i: 1.0}) for i in (3, 20)])
        expected = reference(model, rows).numpy()
    assert (answer.count, answer.top) == (2, 4)
    for scores, (up, down) in zip(expected, unpacked(answer.tokens, answer.values, 4), strict=True):
        order = np.argsort(-scores)
        assert [token for token, _ in up] == order[:4].tolist()
        assert [token for token, _ in down] == order[::-1][:4].tolist()
        assert [value for _, value in up] == pytest.approx(scores[order[:4]], rel=1e-4)
        assert [value for _, value in down] == pytest.approx(scores[order[::-1][:4]], rel=1e-4)
        for token, _ in (*up, *down):
            assert answer.texts[token] == model.tokenizer.decode([token])


def test_given_directions_are_answered_as_features_are(loaded: Loaded) -> None:
    model, held = loaded("llama"), sae()
    given = held.W_dec[[7, 2]].numpy().astype("<f4").tobytes()
    by_direction = promote(model, None, directions=given)
    by_feature = promote(model, held, features=[7, 2])
    assert (by_direction.tokens, by_direction.values) == (by_feature.tokens, by_feature.values)
    assert by_direction.texts == {}


def test_an_answer_has_no_more_directions_than_its_share_of_work(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = loaded("llama"), sae()
    whole = promote(model, held, features=list(range(WIDTH)))
    monkeypatch.setattr(promoting, "CPU_PRODUCTS", 5 * HIDDEN * model.vocabulary)
    part = promote(model, held, features=list(range(WIDTH)))
    assert (whole.count, part.count) == (WIDTH, 5)
    assert part.tokens == whole.tokens[: len(part.tokens)]
    monkeypatch.setattr(promoting, "CPU_PRODUCTS", 1)
    assert promote(model, held, features=[1, 2]).count == 1


@pytest.mark.parametrize(
    ("code", "features", "cut"),
    [("INVALID_FEATURE_INDEX", [0, WIDTH], HIDDEN), ("SAE_INCOMPATIBLE", [0], HIDDEN - 1)],
)
def test_what_cannot_be_asked_is_refused(
    loaded: Loaded, code: str, features: list[int], cut: int
) -> None:
    whole = sae()
    held = Sae(whole.W_enc[:cut], whole.b_enc, whole.W_dec[:, :cut], whole.b_dec[:cut], "relu")
    assert refusal_of(promote, loaded("llama"), held, features=features).code == code
