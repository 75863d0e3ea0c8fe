"""The content digests of the records of local models: computed beside everything else."""

from __future__ import annotations

import shutil
import threading

import pytest

from steerserve.database.catalog import ModelRow
from steerserve.files import model_content
from tests.doubles import World, write_checkpoint
from tests.waiting import PATIENCE, soon, until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Reading of files waits until this event is set."""
    opened, digest = threading.Event(), model_content.digest

    def waiting(*fields: object) -> object:
        opened.wait(PATIENCE)
        return digest(*fields)  # type: ignore[arg-type]

    monkeypatch.setattr(model_content, "digest", waiting)
    return opened


async def known(world: World, row: ModelRow) -> str:
    await soon(world.contents.until_known(await world.catalog.model(row.id)))
    digest = (await world.catalog.model(row.id)).content_digest
    assert digest is not None
    return digest


async def test_registering_and_loading_do_not_wait_for_the_digest_and_attaching_does(
    world: World, held: threading.Event
) -> None:
    row = await world.loaded()
    assert (await world.catalog.model(row.id)).content_digest is None
    attaching = world.begin(world.attachments.attach(await world.sae(), 1))
    await world.conductor.records.sae("sae_a", "cached")
    assert not attaching.done()
    held.set()
    await soon(attaching)
    digest = (await world.catalog.model(row.id)).content_digest
    assert digest is not None
    assert world.resident.row.content_digest == digest


async def test_files_that_changed_get_a_new_digest_with_the_next_load(world: World) -> None:
    row = await world.loaded()
    first = await known(world, row)
    await soon(world.conductor.unload(row.id))
    (world.home / "a" / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
    await soon((await world.conductor.load(await world.catalog.model(row.id))).ready)
    second = await known(world, row)
    assert second != first
    assert world.resident.row.content_digest == second


async def test_digests_of_before_name_the_files_that_count_as_long_as_they_are_the_same(
    world: World,
) -> None:
    row = await world.loaded()
    content = await known(world, row)
    (alias,) = world.resident.row.content_aliases
    assert content.startswith("v2:")

    async def after(change: dict[str, object], file: str, text: str) -> ModelRow:
        await world.catalog.change_model(row.id, **change)
        await soon(world.conductor.unload(row.id))
        (world.home / "a" / file).write_text(text)
        await soon((await world.conductor.load(await world.catalog.model(row.id))).ready)
        await known(world, row)
        return await world.catalog.model(row.id)

    # another stamp has the files read again, and another VERSION changes the digest of the first version
    renamed = await after({"content_stamp": "before"}, "VERSION", "2")
    assert renamed.content_digest == content
    assert renamed.content_aliases[1:] == [alias]
    changed = await after({}, "config.json", '{"architectures": ["OtherForCausalLM"]}')
    assert changed.content_digest != content
    assert len(changed.content_aliases) == 1
    assert alias not in changed.content_aliases


async def test_the_same_files_are_read_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.loaded()
    first = await known(world, row)
    monkeypatch.setattr(model_content, "digest", None)
    await soon(world.conductor.unload(row.id))
    await soon((await world.conductor.load(await world.catalog.model(row.id))).ready)
    assert await known(world, row) == first


async def test_an_sae_is_attached_to_a_model_whose_files_are_gone(
    world: World, held: threading.Event
) -> None:
    row = await world.loaded()
    shutil.rmtree(world.home / "a")
    held.set()
    await soon(world.attachments.attach(await world.sae(), 1))
    assert (await world.catalog.model(row.id)).content_digest is None


@pytest.mark.parametrize("ends_by", ["a close", "a deletion"])
async def test_a_long_reading_ends_with_its_model_and_with_the_service(
    world: World, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    reached = threading.Event()

    def endless(_: object, ended: threading.Event) -> str:
        reached.set()
        ended.wait()
        raise model_content.ReadingEnded

    monkeypatch.setattr(model_content, "digest", endless)
    row = await world.models.add(
        str(write_checkpoint(world.home / "b")),
        quantization="FP16",
        custom_name=None,
        trust_remote_code=False,
    )
    await until(reached.is_set)
    if ends_by == "a deletion":
        reading = world.begin(world.contents.until_known(row))
        await soon(world.models.remove(row.id))
        await soon(reading)
    else:
        await soon(world.contents.close())
        assert (await world.catalog.model(row.id)).content_digest is None
