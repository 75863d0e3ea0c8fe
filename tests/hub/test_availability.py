"""A hub that is away: second tries, the breaker, limits of time."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict

import pytest

from tests.hub.conftest import MakeHub, downloaders, held
from tests.loopback_hub import LoopbackHub
from tests.refusals import refusal_of, refused
from tests.waiting import Clock


async def test_one_failure_is_tried_again(make_hub: MakeHub, tiny: LoopbackHub) -> None:
    tiny.fault("/api/models/", times=1, status=500)
    hub = make_hub()
    assert (await hub.describe("acme/tiny")).files
    assert hub.breakers()[0].failure_count == 0


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_hub_that_is_away_is_unavailable(
    make_hub: MakeHub, loopback: LoopbackHub, status: int
) -> None:
    loopback.fault("/api/models/", status=status)
    refusal = await refused(make_hub().describe("acme/tiny"))
    assert (refusal.code, refusal.details["recovery_seconds"]) == ("HUB_UNAVAILABLE", 1.0)
    assert refusal.message == f"the hub answered {status}"
    assert len(loopback.asked("/api/models/acme/tiny")) == 2


async def test_a_port_where_nobody_listens(make_hub: MakeHub) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    refusal = await refused(make_hub(hf_endpoint=address).describe("acme/tiny"))
    assert (refusal.code, refusal.message) == ("HUB_UNAVAILABLE", "the hub cannot be reached")


async def test_a_connection_that_breaks_is_named_by_what_happened(
    make_hub: MakeHub, tiny: LoopbackHub
) -> None:
    tiny.fault("/api/models/", cut=3)
    refusal = await refused(make_hub().describe("acme/tiny"))
    assert (refusal.code, refusal.message) == ("HUB_UNAVAILABLE", "the connection to the hub broke")


async def test_failures_in_a_row_open_the_breaker_and_a_probe_closes_it(
    make_hub: MakeHub, tiny: LoopbackHub, clock: Clock
) -> None:
    tiny.fault("/api/models/", status=502)
    hub = make_hub(hub_breaker_failures=2, hub_breaker_recovery_s=60)
    for _ in range(2):
        assert (await refused(hub.describe("acme/tiny"))).code == "HUB_UNAVAILABLE"
    before = len(tiny.seen)
    clock.now += 20
    refusal = await refused(hub.describe("acme/tiny"))
    assert "failed 2 times" in refusal.message
    assert (refusal.code, refusal.details["recovery_seconds"]) == ("HUB_UNAVAILABLE", 40.0)
    assert len(tiny.seen) == before
    told = hub.breakers()[0]
    assert asdict(told) == {
        "name": "huggingface",
        "state": "open",
        "is_open": True,
        "failure_count": 2,
        "failure_threshold": 2,
        "recovery_seconds": 60,
        "retry_in_seconds": 40.0,
        "trips": 1,
    }
    clock.now += 40
    refusal = await refused(hub.describe("acme/tiny"))
    assert (refusal.details["recovery_seconds"], hub.breakers()[0].trips) == (60.0, 2)
    tiny.heal()
    clock.now += 60
    assert await hub.describe("acme/tiny")
    assert (hub.breakers()[0].state, hub.breakers()[0].failure_count) == ("closed", 0)


async def test_a_reset_closes_the_breaker(make_hub: MakeHub, tiny: LoopbackHub) -> None:
    fault = tiny.fault("/api/models/", status=502)
    hub = make_hub(hub_breaker_failures=1)
    await refused(hub.describe("acme/tiny"))
    fault.times = 0
    assert (await refused(hub.describe("acme/tiny"))).code == "HUB_UNAVAILABLE"
    assert hub.reset("huggingface").state == "closed"
    assert await hub.describe("acme/tiny")
    assert refusal_of(hub.reset, "other").code == "BREAKER_NOT_FOUND"


async def test_one_probe_at_a_time_and_a_cancelled_one_gives_its_place_back(
    make_hub: MakeHub, tiny: LoopbackHub, clock: Clock
) -> None:
    down = tiny.fault("/api/models/", status=502)
    hub = make_hub(hub_breaker_failures=1, hub_breaker_recovery_s=60)
    await refused(hub.describe("acme/tiny"))
    down.times = 0
    slow = tiny.fault("/api/models/", times=1, hold=1)
    clock.now += 60
    probe = asyncio.create_task(hub.describe("acme/tiny"))
    await held(slow.held)
    assert hub.breakers()[0].state == "half_open"
    assert (await refused(hub.describe("acme/tiny"))).details["recovery_seconds"] == 1.0
    (child,) = downloaders()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert not child.is_running()
    assert hub.breakers()[0].state == "open"
    assert await hub.describe("acme/tiny")


async def test_an_answer_that_does_not_come_is_given_up(
    make_hub: MakeHub, tiny: LoopbackHub
) -> None:
    tiny.fault("/api/models/", hold=0)
    hub = make_hub(describe_seconds=0.6)
    assert (await refused(hub.describe("acme/tiny"))).code == "HUB_UNAVAILABLE"
    assert hub.breakers()[0].failure_count == 1
    assert not downloaders()
