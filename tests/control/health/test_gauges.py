"""The numbers as one object and as text."""

from __future__ import annotations

import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles import World, breaker
from tests.rules.residency.test_gpus import card
from tests.waiting import plain, soon

FIELDS = set(
    "total_requests active_requests request_errors model_loaded model_name model_load_count "
    "model_unload_count sae_attached sae_id steering_enabled circuits_serving circuit_layers_served "
    "circuit_layers_composed circuit_claim_faults active_features monitoring_enabled "
    "monitored_features circuit_breaker_open circuit_breaker_trips uptime_seconds timestamp".split()
)


async def exposed(world: World) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the text by its name and labels."""
    text = (await world.gauges.text()).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name.removeprefix("steerserve_"), tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


async def value(world: World, name: str, /, **labels: str) -> float | None:
    return (await exposed(world)).get((name, tuple(sorted(labels.items()))))


async def test_nothing_has_happened_and_what_is_not_measured_is_null(world: World) -> None:
    body = plain(await world.gauges.body())
    assert set(body) >= FIELDS
    assert (body["total_requests"], body["model_loaded"], body["model_name"]) == (0, False, None)
    assert body["latency_ms"] == {"p50": None, "p95": None, "p99": None}
    assert body["circuits_serving"] == 0
    assert body["gpu"]["gpu_memory_used_mb"] is None
    assert body["gpu"]["reason"] == "no driver"
    assert body["timestamp"].endswith("Z")


@pytest.mark.shows("health.6")
async def test_what_serves_and_steers_is_told(world: World) -> None:
    await world.attached()
    await world.steering.set_values({3: 5.0, 4: 1.0})
    await world.answered()
    world.driver.cards, world.driver.reason = [card("GPU-a", 0)], None
    body = plain(await world.gauges.body())
    assert (body["model_loaded"], body["model_name"], body["model_load_count"]) == (True, "a", 1)
    assert (body["sae_attached"], body["sae_id"]) == (True, "sae_a")
    assert (body["steering_enabled"], body["active_features"]) == (True, 2)
    assert body["completion_tokens"] == 1
    assert body["time_to_first_token_ms"]["p50"] is not None
    assert body["gpu"]["gpu_count"] == 1
    await world.steering.disable()
    body = plain(await world.gauges.body())
    assert (body["steering_enabled"], body["active_features"]) == (False, 0)


async def test_the_text_parses_and_carries_the_state(world: World) -> None:
    await world.attached()
    await world.steering.set_values({3: 5.0})
    world.driver.cards = [card("GPU-a", 0)]
    asked, stream = await world.in_flight()
    assert await value(world, "queue_pending") == 1
    assert await value(world, "queue_in_flight") == 1
    assert await value(world, "model_loaded") == 1
    assert await value(world, "sae_attached") == 1
    assert await value(world, "steering_enabled") == 1
    assert await value(world, "steering_active_features") == 1
    assert await value(world, "card_memory_used_bytes", card="0") == 20480 * 1024**2
    assert await value(world, "card_memory_total_bytes", card="0") == 81920 * 1024**2
    assert (await value(world, "process_resident_memory_bytes", process="control") or 0) > 1e6
    assert await value(world, "process_resident_memory_bytes", process="engine") is None
    assert not [name for name, _ in await exposed(world) if name.endswith("_created")]
    stream.complete()
    await soon(asked)
    assert await value(world, "queue_in_flight") == 0


async def test_the_engines_memory_is_told_while_it_lives(world: World) -> None:
    row = await world.loaded()
    world.launcher.engine.pid = os.getpid()
    assert (await value(world, "process_resident_memory_bytes", process="engine") or 0) > 1e6
    world.launcher.engine.pid = 2**22 + 1  # above every process id that Linux gives
    assert await value(world, "process_resident_memory_bytes", process="engine") is None
    await world.conductor.unload(row.id)
    assert await value(world, "process_resident_memory_bytes", process="control")
    assert await value(world, "process_resident_memory_bytes", process="engine") is None


async def test_the_memory_of_an_engine_on_another_node_is_not_that_of_a_process_here(
    world: World,
) -> None:
    await world.loaded()
    engine = world.launcher.engine
    engine.pid, engine.node = os.getpid(), "gpu-1"
    assert await value(world, "process_resident_memory_bytes", process="engine") is None


async def test_a_card_that_went_away_has_no_series(world: World) -> None:
    world.driver.cards = [card("GPU-a", 0), card("GPU-b", 1)]
    assert await value(world, "card_memory_used_bytes", card="1")
    world.driver.cards = [card("GPU-a", 0)]
    await world.cards.reading()
    assert await value(world, "card_memory_used_bytes", card="1") is None


async def test_passes_that_steered_only_grow_when_an_sae_is_attached_again(world: World) -> None:
    await world.loaded()
    sae = await world.sae()
    (attached,) = [await world.attachments.attach(sae, 1)]
    (key,) = world.launcher.engine.passes.applied
    world.launcher.engine.tell(applied={key: 10})
    assert await value(world, "steering_applied_total") == 10
    assert await value(world, "steering_applied_total") == 10
    world.launcher.engine.tell(applied={key: 4})
    assert await value(world, "steering_applied_total") == 14
    assert attached is not None


async def test_passes_that_steered_only_grow_when_the_model_is_loaded_again(world: World) -> None:
    """Replicas have no process id that would tell the engines apart."""
    row, sae = await world.model(), await world.sae()
    for count, total in ((10, 10), (12, 22)):
        await soon((await world.conductor.load(row)).ready)
        await world.attachments.attach(sae, 1)
        assert world.launcher.engine.pid is None
        (key,) = world.launcher.engine.passes.applied
        world.launcher.engine.tell(applied={key: count})
        assert await value(world, "steering_applied_total") == total
        await world.conductor.unload(row.id)


async def test_breakers_are_shown_and_their_trips_only_grow(world: World) -> None:
    world.breakers.states = [breaker(state="open", is_open=True, trips=2)]
    assert await value(world, "circuit_breaker_open", name="huggingface") == 1
    assert await value(world, "circuit_breaker_trips_total", name="huggingface") == 2
    world.breakers.states = [breaker(state="half_open", trips=3)]
    assert await value(world, "circuit_breaker_open", name="huggingface") == 0
    assert await value(world, "circuit_breaker_trips_total", name="huggingface") == 3
    body = plain(await world.gauges.body())
    assert (body["circuit_breaker_open"], body["circuit_breaker_trips"]) == (False, 3)


async def test_no_name_that_a_client_chose_is_in_the_text(world: World) -> None:
    await world.loaded("secret-model")
    await world.attachments.attach(await world.sae("sae_secret"), 1)
    text = (await world.gauges.text()).decode()
    assert "secret" not in text
    assert str(world.home) not in text
