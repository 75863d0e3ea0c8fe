"""Fixtures: two tiny models that answer the same prompt differently, and the token of Ray clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

from tests.backend import secured
from tests.worker import models
from tests.worker.running import with_bos

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def ray_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """From the first test on, because Ray reads it when it is imported, as other tests do too."""
    with secured(tmp_path_factory.mktemp("ray")):
        yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> checkpoint folder."""
    transformers_logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("stressed")
    variants = {"red": "llama", "blue": "qwen2"}
    return {
        name: with_bos(models.save(variant, root / name), TEMPLATE)
        for name, variant in variants.items()
    }
