"""Features of SAEs that are not attached, read by an engine of their own, and labels of an SAE that is registered again."""

from __future__ import annotations

import pytest

from steerserve.nouns.features import owner as features
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon


async def test_reading_ends_when_it_takes_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.sae()
    world.launcher.hold("explore")
    monkeypatch.setattr(features, "READ_SECONDS", 0.0)
    refusal = await refused(world.features.get("sae_a", 1))
    assert refusal.code == "SAE_LOAD_FAILED"
    assert "within" in refusal.message
    assert world.launcher.alive == []
    monkeypatch.undo()
    assert (await soon(world.features.get("sae_a", 2))).feature_idx == 2


async def test_a_reader_that_ends_is_a_failed_read(world: World) -> None:
    await world.sae()
    asking, _ = await world.held("explore", world.features.search("sae_a", None, 1, 3))
    world.launcher.engine.die()
    refusal = await refused(asking)
    assert refusal.code == "SAE_LOAD_FAILED"
    assert "model" not in refusal.message


@pytest.mark.parametrize(
    ("status", "code"), [("downloading", "MODEL_BUSY"), ("error", "SAE_LOAD_FAILED")]
)
async def test_an_sae_whose_files_are_not_here_is_not_read(
    world: World, status: str, code: str
) -> None:
    await world.sae()
    await world.catalog.change_sae("sae_a", status=status, local_path=None, error_message="full")
    for asked in (
        world.features.get("sae_a", 1),
        world.features.search("sae_a", None, 1, 3),
    ):
        refusal = await refused(asked)
        assert refusal.code == code
        assert refusal.details == {"sae_id": "sae_a", "status": status}
    assert world.launcher.log == []


async def test_an_sae_that_is_registered_again_has_no_labels(world: World) -> None:
    await world.sae()
    await world.features.add_labels("sae_a", {"1": "old"}, replace=False)
    assert await world.features.labels("sae_a") == {1: "old"}
    await world.saes.remove("sae_a")
    (world.home / "sae_a").rmdir()
    await world.sae()
    assert await world.features.labels("sae_a") == {}
