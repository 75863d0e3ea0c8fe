"""The service that a case asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.net.answers.worlds import WORLDS, World


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The world of this name. Cases of one world follow each other."""
    if torch.cuda.is_available():
        pytest.skip("the answers are pinned for a processor; a card computes in float16")
    with WORLDS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made
