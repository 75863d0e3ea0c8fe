"""The fixture of checkpoints that are compared with the library's models in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker.rows.reference_streams import Reference, reference, save
from tests.worker.running import open_checkpoint

Pair = Callable[[str], tuple[Checkpoint, Reference]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A variant with random norms: as the engine loads it, and in float64."""
    held: dict[str, tuple[Checkpoint, Reference]] = {}
    root = tmp_path_factory.mktemp("norms")

    def of(variant: str) -> tuple[Checkpoint, Reference]:
        if variant not in held:
            folder = save(variant, root / variant)
            loaded = open_checkpoint(folder)
            with torch.inference_mode(False):
                held[variant] = loaded, reference(variant, folder)
        return held[variant]

    return of
