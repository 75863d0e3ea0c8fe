"""Hostile checkpoints of every kind, one after the other, against one service that goes on serving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import damaged
from tests.service import Running, running
from tests.soak import watching

pytestmark = [pytest.mark.soak, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("checkpoints"), **watching.SMALL, load_timeout=60) as live:
        yield live


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged.make(tmp_path_factory.mktemp("sound") / "model")


def load(live: Running, folder: Path) -> str | None:
    """The code with which a folder or its load is refused; None when the model is loaded."""
    body = {"source": "local", "local_path": str(folder), "custom_name": folder.name}
    added = live.http.post("/api/models", json=body).json()
    if added["error"]:
        return str(added["error"]["code"])
    path = f"/api/models/{added['data']['id']}/load?wait=true"
    error = live.http.post(path, timeout=120).json()["error"]
    return str(error["code"]) if error else None


@pytest.mark.parametrize("name", damaged.UNLOADABLE)
def test_a_hostile_checkpoint_is_refused_and_the_next_one_is_served(
    live: Running, sound: Path, tmp_path: Path, name: str
) -> None:
    hostile = damaged.copy(sound, tmp_path / name.replace(" ", "_"), damaged.UNLOADABLE[name])
    assert load(live, hostile) in (
        "INVALID_LOCAL_PATH",
        "MODEL_LOAD_FAILED",
        "INSUFFICIENT_MEMORY",
        "UNSUPPORTED_QUANTIZATION",
    )
    assert live.http.get("/api/health", timeout=1).status_code == 200
    plain = damaged.copy(sound, tmp_path / f"after_{name.replace(' ', '_')}", lambda _: None)
    assert load(live, plain) is None
    body = {"model": plain.name, "prompt": "the boats", "max_tokens": 4}
    assert live.post("/v1/completions", body)


@pytest.mark.parametrize("name", damaged.SERVED)
def test_an_index_that_names_other_files_is_served(
    live: Running, sound: Path, tmp_path: Path, name: str
) -> None:
    odd = damaged.copy(sound, tmp_path / name.replace(" ", "_"), damaged.SERVED[name])
    assert load(live, odd) is None
