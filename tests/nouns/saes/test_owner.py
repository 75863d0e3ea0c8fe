"""Registering and deleting SAEs of this machine: their ids derive from their content."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from steerserve.errors import Refusal
from steerserve.files import sae_files
from steerserve.nouns.profiles.store import ProfileStore
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon


def sae_folder(folder: Path, weights: bytes = b"weights") -> Path:
    """A folder with the files of an SAE, as far as their names tell."""
    folder.mkdir(parents=True)
    (folder / "cfg.json").write_text("{}")
    (folder / "sae_weights.safetensors").write_bytes(weights)
    return folder


async def test_an_sae_folder_is_registered_once_and_its_engine_is_gone(world: World) -> None:
    folder = world.home / "sae"
    folder.mkdir()
    first, was_there = await world.saes.add(str(folder))
    again, is_there = await world.saes.add(str(folder) + "/")
    assert (was_there, is_there) == (False, True)
    assert first == again
    assert first.id.startswith("sae_")
    assert world.launcher.log.count("inspect") == 1
    assert world.launcher.alive == []


async def test_an_sae_that_cannot_be_read_is_not_registered_and_its_engine_is_gone(
    world: World,
) -> None:
    folder = world.home / "sae"
    folder.mkdir()
    world.launcher.fail("inspect", Refusal("SAE_LOAD_FAILED", "damaged"))
    with pytest.raises(Refusal):
        await world.saes.add(str(folder))
    assert not await world.saes.list()
    assert world.launcher.alive == []


async def test_the_same_content_has_the_same_id_wherever_it_lies(world: World) -> None:
    first, _ = await world.saes.add(str(sae_folder(world.home / "one")))
    again, was_there = await world.saes.add(str(sae_folder(world.home / "two")))
    other, is_other_there = await world.saes.add(str(sae_folder(world.home / "three", b"more")))
    assert (again, was_there) == (first, True)
    assert not is_other_there
    assert other.id != first.id


async def test_a_folder_that_was_moved_is_found_at_its_new_place(world: World) -> None:
    folder = sae_folder(world.home / "old")
    first, _ = await world.saes.add(str(folder))
    moved = shutil.move(folder, world.home / "new")
    again, was_there = await world.saes.add(str(moved))
    assert (again.id, was_there) == (first.id, True)
    assert again.local_path == str(moved)


async def test_other_content_at_a_path_is_another_sae(world: World) -> None:
    folder = sae_folder(world.home / "sae")
    first, _ = await world.saes.add(str(folder))
    (folder / "sae_weights.safetensors").write_bytes(b"trained again")
    second, was_there = await world.saes.add(str(folder))
    assert not was_there
    assert [row.id for row in await world.saes.list()] == [second.id]
    assert second.id != first.id


async def test_the_record_of_an_attached_sae_stays_when_its_files_change(world: World) -> None:
    await world.loaded()
    folder = sae_folder(world.home / "sae")
    first, _ = await world.saes.add(str(folder))
    await soon(world.attachments.attach(first, 1))
    (folder / "sae_weights.safetensors").write_bytes(b"trained again")
    assert (await refused(world.saes.add(str(folder)))).code == "SAE_ALREADY_ATTACHED"
    assert [row.id for row in await world.saes.list()] == [first.id]


async def test_ids_of_an_earlier_version_are_renewed_with_all_that_names_them(world: World) -> None:
    made, _ = await world.saes.add(str(sae_folder(world.home / "sae")))
    gone, _ = await world.saes.add(str(sae_folder(world.home / "gone", b"gone")))
    shutil.rmtree(world.home / "gone")
    for row, former in ((made, "sae_old"), (gone, "sae_gone")):
        await world.catalog.rename_sae(row.id, former, content_digest=None)
    await world.labels.put("sae_old", {3: "sea"})
    profile = await ProfileStore(world.database).add_profile(
        name="calm", steering={3: 1.0}, sae_id="sae_old"
    )
    await world.saes.renew_ids()
    assert {row.id for row in await world.saes.list()} == {made.id, "sae_gone"}
    assert await world.labels.labels_of(made.id) == {3: "sea"}
    assert (await ProfileStore(world.database).row(profile.id)).sae_id == made.id
    assert (await world.saes.add(str(world.home / "sae")))[0].id == made.id


async def test_a_start_reads_no_files_of_saes_that_an_earlier_start_has_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await world.saes.add(str(sae_folder(world.home / "first")))
    await world.catalog.add_sae(
        id="sae_twin", local_path=str(sae_folder(world.home / "twin")), name="twin", status="cached"
    )
    await world.catalog.rename_sae(first.id, "sae_first", content_digest=None)
    digested: list[Path] = []
    digest = sae_files.content_digest

    def counted(place: Path) -> str:
        digested.append(place)
        return digest(place)

    monkeypatch.setattr(sae_files, "content_digest", counted)
    await world.saes.renew_ids()
    assert len(digested) == 2
    # two records have the same content, and only one of them can have the id made from it
    assert first.id in {row.id for row in await world.saes.list()}
    assert all(row.content_digest for row in await world.saes.list())
    digested.clear()
    await world.saes.renew_ids()
    assert digested == []
