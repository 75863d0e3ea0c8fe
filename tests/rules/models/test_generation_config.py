"""How the generation config of a checkpoint is read."""

from __future__ import annotations

import pytest

from steerserve.rules.models.generation_config import GREEDY, GenerationConfig, recommended


@pytest.mark.parametrize(
    ("members", "read"),
    [
        ((None, None, None), GREEDY),
        ((False, 0.6, 0.9), GREEDY),
        ((True, None, None), GenerationConfig(1.0, 1.0)),
        ((True, 0.6, 0.95), GenerationConfig(0.6, 0.95)),
        ((None, 0.6, None), GenerationConfig(0.6, 1.0)),
        ((None, None, 0.9), GenerationConfig(1.0, 0.9)),
        ((True, 5.0, -1), GenerationConfig(1.0, 1.0)),
        ((True, "hot", True), GenerationConfig(1.0, 1.0)),
        ((True, float("nan"), 1), GenerationConfig(1.0, 1.0)),
    ],
)
def test_the_recommended_sampling(
    members: tuple[object, object, object], read: GenerationConfig
) -> None:
    assert recommended(*members) == read
