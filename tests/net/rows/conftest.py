"""Fixtures: a small checkpoint with room for long prompts, an SAE for it, and engines that hold both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.net.rows.engine import Engine
from tests.worker import models, saes
from tests.worker.conftest import quiet_inference
from tests.worker.running import altered

__all__ = ["quiet_inference"]

Start = Callable[..., Engine]
CONTEXT = 1024


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the checkpoint and of the SAE."""
    root = tmp_path_factory.mktemp("net")
    with torch.inference_mode():
        plain = models.save("llama", root / "plain")
        wide = altered(plain, root / "llama", max_position_embeddings=CONTEXT)
    config = saes.config_v6("standard", d_in=32)
    return wide, saes.write(root / "sae", config, saes.arrays("standard", d_in=32))


@pytest.fixture(scope="module")
def start(files: tuple[Path, Path]) -> Iterator[Start]:
    """Starts an engine whose load has these fields."""
    engines: list[Engine] = []

    def started(**fields: object) -> Engine:
        engines.append(Engine(*files, **fields))
        return engines[-1]

    yield started
    for engine in engines:
        engine.close()
