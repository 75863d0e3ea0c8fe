"""Registering and deleting models."""

from __future__ import annotations

from contextlib import suppress

from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from tests.control.conftest import refused
from tests.doubles import World, write_checkpoint
from tests.waiting import soon


async def register(world: World, folder: str, quantization: str = "FP16") -> ModelRow:
    return await world.models.add(
        folder, quantization=quantization, custom_name=None, trust_remote_code=False
    )


async def test_a_folder_is_registered_with_what_its_files_say(world: World) -> None:
    row = await register(world, str(write_checkpoint(world.home / "tiny")))
    assert (row.name, row.architecture, row.dtype) == ("tiny", "TinyForCausalLM", "float32")
    assert (row.num_parameters, row.disk_size_mb, row.status) == (4, 1, "ready")


async def test_a_folder_is_registered_once_per_quantization(world: World) -> None:
    folder = str(write_checkpoint(world.home / "tiny"))
    await register(world, folder)
    await register(world, folder, "Q8")
    assert (await refused(register(world, folder + "/../tiny/"))).code == "MODEL_ALREADY_EXISTS"
    assert len(await world.models.list()) == 2


async def test_every_registered_model_can_be_named(world: World) -> None:
    await register(world, str(write_checkpoint(world.home / "one" / "model")))
    with suppress(Refusal):  # a second model of the name may be refused, or named apart
        await register(world, str(write_checkpoint(world.home / "two" / "model")))
    for row in await world.models.list():
        assert (await world.served.resolve(row.name)).row.id == row.id


async def test_a_resident_model_is_not_deleted_and_an_idle_one_keeps_its_files(
    world: World,
) -> None:
    row = await world.loaded()
    assert (await refused(world.models.remove(row.id))).code == "MODEL_BUSY"
    await soon(world.conductor.unload(row.id))
    await world.models.remove(row.id)
    assert not await world.models.list()
    assert (world.home / "a" / "model.safetensors").exists()


async def test_a_model_that_waits_for_its_place_is_not_deleted(world: World) -> None:
    await world.loaded("a")
    coming = await world.model("b")
    holder, stream = await world.in_flight("a")
    resident = await world.conductor.load(coming)
    assert (await refused(world.models.remove(coming.id))).code == "MODEL_BUSY"
    stream.complete()
    await soon(holder)
    await soon(resident.ready)
