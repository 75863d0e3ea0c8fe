"""Fixtures: tiny checkpoints on the disk, and the same checkpoints loaded. Each is made once per run, when a test first
needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.worker.model import native
from steerserve.worker.model.checkpoint import Checkpoint
from tests.worker import models
from tests.worker.running import open_checkpoint

Folder = Callable[[str], Path]
Loaded = Callable[[str], Checkpoint]


@pytest.fixture(scope="module", autouse=True)
def quiet_inference() -> Iterator[None]:
    """No gradients, as in the engine process, and one thread, because tiny tensors gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The checkpoint folder of a variant."""
    root = tmp_path_factory.mktemp("checkpoints")

    def of(variant: str) -> Path:
        path = root / variant
        return path if path.exists() else models.save(variant, path)

    return of


@pytest.fixture(scope="session")
def loaded(folder: Folder) -> Loaded:
    """The loaded checkpoint of a variant, shared by all tests. If the load was refused, the refusal is raised each
    time."""
    held: dict[str, Checkpoint] = {}

    def of(variant: str) -> Checkpoint:
        if variant not in held:
            held[variant] = open_checkpoint(folder(variant))
        return held[variant]

    return of


@pytest.fixture(scope="session")
def loaded_plainly(folder: Folder) -> Loaded:
    """As `loaded`, without the compiled functions of the processor."""
    held: dict[str, Checkpoint] = {}

    def of(variant: str) -> Checkpoint:
        if variant not in held:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(native, "kernels", lambda: None)
                held[variant] = open_checkpoint(folder(variant))
        return held[variant]

    return of


@pytest.fixture
def tapeable(loaded_plainly: Loaded, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Models without the compiled functions of the processor, whose calls a tape does not see. Only cards record passes,
    and they have no such functions."""
    monkeypatch.setattr(native, "kernels", lambda: None)
    return loaded_plainly


@pytest.fixture
def llama(loaded: Loaded) -> Checkpoint:
    return loaded("llama")


@pytest.fixture
async def engine() -> AsyncIterator[CheckpointEngine]:
    """An engine process without a model."""
    started = await Launcher("CRITICAL", "json").launch()
    yield started
    await started.stop()
