"""Fixtures: each real model in transformers, and one service that has one form of it loaded at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tools.real import text
from tools.real.models import MODELS, RealModel

from tests.real.asking import RealService
from tests.real.figures import Figures
from tests.real.reference import Reference
from tests.service import running

ROWS = 16
"""Requests that run at once."""


FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    found = request.config.stash[FIGURES] = Figures()
    yield found
    found.end()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print all figures of the run."""
    found = config.stash.get(FIGURES, None)
    if found is not None:
        terminalreporter.section("distances from float32")
        for line in found.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    settings = {"max_concurrent_requests": ROWS, "kv_cache_mb": 512}
    with running(tmp_path_factory.mktemp("real"), **settings) as live:
        yield RealService(live)


@pytest.fixture(scope="session", params=MODELS, ids=lambda real: real.name)
def real(request: pytest.FixtureRequest) -> RealModel:
    model: RealModel = request.param
    return model


@pytest.fixture(scope="session")
def reference(real: RealModel) -> Iterator[Reference]:
    yield Reference(real.checkpoint)
    gc.collect()


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """Samples of the Brown corpus: news, editorials, stories, and more."""
    return list(text.samples().values())


@pytest.fixture
def served(service: RealService, real: RealModel) -> RealService:
    """The service with the model in bfloat16."""
    service.load(real, "FP16")
    return service
