"""The steering of a request is planned when the request gets its slot: the plan, the echo and the digest agree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from steerserve import messages as m
from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Run
from steerserve.errors import Refusal
from steerserve.rules.saes.attachment import FIRST_SAE
from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering.digest import SteeredModel, SteeredSite, digest
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from tests import asking
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.waiting import soon, until

KEY = "sae_a@1"
OWN = RequestSteering((SteeredFeature(2, 4.0, FIRST_SAE),), is_added=True)


def asked(intensity: float | str | None, own: RequestSteering | None = None) -> Asked:
    return asking.to_write(intensity=intensity, own=own)


async def ready(world: World) -> None:
    await world.attached()
    await world.steering.set_values({1: 10.0})


def state_of(world: World, values: Mapping[int, float]) -> str | None:
    site = SteeredSite("sae_a", SaeOrigin(), 1, "resid_post")
    model = SteeredModel("a", content_digest=world.resident.row.content_digest)
    return digest(model, {KEY: site}, {KEY: values})


@pytest.mark.parametrize(
    ("intensity", "own", "values", "echo"),
    [
        (None, None, {1: 6.0}, None),
        ("max", None, {1: 9.0}, 1.5),
        (None, OWN, {1: 6.0, 2: 4.0}, None),
        (0.5, OWN, {1: 3.0, 2: 2.0}, 0.5),
    ],
)
async def test_a_change_while_the_request_waits_for_its_slot_is_in_plan_echo_and_digest(
    make: Make,
    intensity: float | str | None,
    own: RequestSteering | None,
    values: Mapping[int, float],
    echo: float | None,
) -> None:
    async with make(max_concurrent_requests=1) as world:
        await ready(world)
        holder, first = await world.in_flight()
        opened: asyncio.Future[tuple[Run, m.Plan]] = world.begin(_opened(world, intensity, own))
        await until(lambda: world.queue.counts().pending == 2)
        await world.steering.set_values({1: 6.0})
        first.complete()
        await soon(holder)
        run, plan = await soon(opened)
        state = state_of(world, values)
    # the steering of the request's own holds whatever the epoch is
    epoch = world.steering.live.epoch if own is None else None
    is_following = intensity is None and own is None
    expected = m.Follow(epoch) if is_following else m.Overlay(epoch, {KEY: {**values}})
    assert plan == expected
    assert run.admitted.echo == echo
    assert run.admitted.state == state


async def test_a_request_whose_engine_ended_while_it_waited_is_not_refused_for_its_steering(
    make: Make,
) -> None:
    async with make(max_concurrent_requests=1) as world:
        await ready(world)
        holder, _ = await world.in_flight()
        opened = world.begin(_opened(world, None, OWN))
        await until(lambda: world.queue.counts().pending == 2)
        world.launcher.engine.die()
        with pytest.raises(Refusal):
            await soon(holder)
        refusal = await refused(opened)
    assert refusal.code == "MODEL_NOT_LOADED"


async def _opened(
    world: World, intensity: float | str | None, own: RequestSteering | None
) -> tuple[Run, m.Plan]:
    """The request once it has its slot, and the plan that the engine got."""
    async with world.opened(asked(intensity, own)) as run:
        stream = await world.launcher.stream()
        stream.complete()
        return run, stream.plan


async def test_a_request_with_steering_of_its_own_is_no_step_of_the_epoch(world: World) -> None:
    await ready(world)
    before = world.steering.live
    for intensity, own in ((2.0, None), (0.0, None), (None, OWN), (1.5, OWN)):
        await _opened(world, intensity, own)
        assert world.steering.live is before
