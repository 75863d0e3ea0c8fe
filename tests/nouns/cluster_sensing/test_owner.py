"""Cluster sensing: the armed cluster follows the active profile, and what fired is recorded and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.nouns.cluster_sensing.form import ClusterFired, ClusterFirings
from steerserve.nouns.clusters.rules import Cluster
from steerserve.nouns.profiles.store import ProfileRow
from steerserve.rules.steering.members import AuthoredMember, SaeReference, SensingOverrides
from tests import doubles
from tests.control.conftest import Make, refused
from tests.doubles import World
from tests.waiting import plain, soon, until

KEY = "sae_a@1"
MEMBERS = (
    AuthoredMember(3, 1.0, label="rain", max_activation=5.0),
    AuthoredMember(5, 2.0, max_activation=10.0),
    AuthoredMember(7, 0.5),
)
WEATHER = Cluster(MEMBERS, display_token="rain")


async def cluster(world: World, of: Cluster = WEATHER, name: str = "weather") -> ProfileRow:
    return await world.profile_store.add_profile(
        name=name, steering=of.values, source_kind="cluster", cluster=of, document="{}"
    )


async def attached(world: World, sae_id: str = "sae_a", layer: int = 1) -> None:
    if world.conductor.resident is None:
        await world.loaded()
    await world.attachments.attach(await world.sae(sae_id), layer)


async def serving(world: World, of: Cluster = WEATHER) -> ProfileRow:
    """A cluster that is active and sensed."""
    await attached(world)
    row = await cluster(world, of)
    await world.cluster_sensing.enable(row.id)
    assert (await world.profiles.activate(row.id)).sensing_armed
    return row


def engine(world: World) -> Any:
    return world.launcher.engine


def told(row: ProfileRow, spans: int = 1, **changes: Any) -> m.SensedSpans:
    window = m.Window([1, 2, 3], "a b c", ("a", " b", " c"))
    one = m.SensedSpan(4, 5, "prefill", [(3, 1.5)], 3.0, "rain: 1/3", False, window)
    places = [4 + 2 * i for i in range(spans)]
    made = [structs.replace(one, start=place, end=place) for place in places]
    values: dict[str, Any] = {
        "id": 9,
        "label": "chatcmpl-1",
        "choice": 0,
        "overhead_ms": 0.25,
        "spans": made,
    }
    return m.SensedSpans(**values | {"subject": row.id} | changes)


# ------------------------------------------------------------- arming


@pytest.mark.shows("states.29", "cluster-sensing.5")
async def test_an_enabled_cluster_is_armed_while_it_is_active(world: World) -> None:
    await attached(world)
    row = await cluster(world)
    assert not (await world.profiles.activate(row.id)).sensing_armed
    assert engine(world).state.cluster is None
    assert (await world.cluster_sensing.enable(row.id)).armed
    assert engine(world).state.cluster == m.ArmedCluster(
        subject=row.id,
        title="rain",
        key=KEY,
        members=[
            m.ClusterMember(3, 0.5, "rain"),
            m.ClusterMember(5, 1.0),
            m.ClusterMember(7, float("inf")),
        ],
        min_k=2,
        max_events=20,
        context_tokens=16,
        history=1,
    )
    status = await world.cluster_sensing.status()
    assert (status.armed, status.profile_id, status.profile_name) == (True, row.id, "weather")
    assert (status.member_count, status.sensable_count, status.min_k) == (3, 2, 2)
    assert (status.threshold_mode, status.context_tokens) == ("epsilon_max", 16)
    assert [(one.id, one.is_active) for one in status.enabled_clusters] == [(row.id, True)]


async def test_an_inactive_cluster_is_enabled_without_being_armed(world: World) -> None:
    row = await cluster(world)
    assert not (await world.cluster_sensing.enable(row.id)).armed
    status = await world.cluster_sensing.status()
    assert not status.armed
    assert [(one.id, one.is_active) for one in status.enabled_clusters] == [(row.id, False)]
    assert (status.profile_id, status.min_k, status.threshold_mode) == (None, None, None)


@pytest.mark.shows("states.30", "cluster-sensing.6")
@pytest.mark.parametrize("way", ["disable", "deactivate", "other", "detach", "replace"])
async def test_every_way_out_disarms(world: World, way: str) -> None:
    row = await serving(world)
    other = await world.profile_store.add_profile(name="plain", steering={2: 1.0})
    if way == "disable":
        assert not (await world.cluster_sensing.enable(row.id, enabled=False)).armed
    elif way == "deactivate":
        await world.profiles.deactivate(row.id)
    elif way == "other":
        assert not (await world.profiles.activate(other.id)).sensing_armed
    elif way == "detach":
        await world.attachments.detach("sae_a")
    else:
        await attached(world, "sae_b", 2)
    await world.cluster_sensing.settled()
    assert engine(world).state.cluster is None
    assert not world.cluster_sensing.is_armed
    assert not (await world.cluster_sensing.status()).armed


async def test_a_cluster_of_the_next_activation_takes_the_place(world: World) -> None:
    await serving(world)
    other = await cluster(world, replace(WEATHER, display_token=None), "other")
    await world.cluster_sensing.enable(other.id)
    await world.profiles.activate(other.id)
    assert engine(world).state.cluster.subject == other.id
    assert engine(world).state.cluster.title == "other"


async def test_the_quorum_of_the_operator_rearms_and_null_asks_for_all_sensable_members(
    world: World,
) -> None:
    row = await serving(world, replace(WEATHER, sensing=SensingOverrides(min_k=1)))
    assert engine(world).state.cluster.min_k == 1
    report = await world.cluster_sensing.configure(row.id, 2)
    assert (report.min_k, report.effective_min_k, report.armed) == (2, 2, True)
    assert engine(world).state.cluster.min_k == 2
    report = await world.cluster_sensing.configure(row.id, 1)
    assert (report.min_k, report.effective_min_k, report.armed) == (1, 1, True)
    why = await refused(world.cluster_sensing.configure(row.id, 3))
    assert (why.code, why.details) == (
        "VALIDATION_ERROR",
        {
            "min_k": 3,
            "member_count": 3,
            "sensable_count": 2,
            "errors": [{"loc": ["body", "min_k"], "msg": why.message}],
        },
    )
    report = await world.cluster_sensing.configure(row.id, None)
    assert (report.min_k, report.effective_min_k) == (None, 2)
    assert engine(world).state.cluster.min_k == 2


async def test_what_is_not_a_cluster_or_unknown_is_refused(world: World) -> None:
    plain = await world.profile_store.add_profile(name="plain", steering={2: 1.0})
    for work in (
        world.cluster_sensing.enable(plain.id),
        world.cluster_sensing.configure(plain.id, 1),
    ):
        why = await refused(work)
        assert (why.code, why.details["source_kind"]) == ("VALIDATION_ERROR", "manual")
    assert (await refused(world.cluster_sensing.enable("prof_0"))).code == "PROFILE_NOT_FOUND"


@pytest.mark.parametrize("reason", ["thresholds", "engine"])
async def test_a_cluster_that_cannot_be_armed_stays_enabled_and_active(
    world: World, reason: str
) -> None:
    await attached(world)
    of = WEATHER if reason == "engine" else Cluster((AuthoredMember(3, 1.0),))
    row = await cluster(world, of)
    if reason == "engine":
        world.launcher.fail("sense", Refusal("INSUFFICIENT_MEMORY", "no room"))
    await world.profiles.activate(row.id)
    why = await refused(world.cluster_sensing.enable(row.id))
    assert why.code == "VALIDATION_ERROR"
    assert (await world.profile_store.row(row.id)).sensing_enabled
    assert world.serving.profile_id == row.id
    assert not (await world.cluster_sensing.status()).armed
    assert not (await world.profiles.deactivate(row.id, clears=False))
    report = await world.profiles.activate(row.id)
    assert report.sensing_armed == (reason == "engine")


async def test_a_declared_number_of_features_must_agree(world: World) -> None:
    await attached(world)
    row = await cluster(world, replace(WEATHER, sae=SaeReference(n_features=16)))
    await world.cluster_sensing.enable(row.id)
    assert (await world.profiles.activate(row.id)).sensing_armed


async def test_the_document_overrides_the_settings(make: Make) -> None:
    wanted = SensingOverrides(epsilon=0.5, theta_floor=1.0, min_k=1, context_tokens=2)
    async with make(
        sensing_epsilon=0.2,
        sensing_context_tokens=3,
        sensing_max_events_per_request=4,
        sensing_dedup_history=False,
    ) as world:
        await serving(world, replace(WEATHER, sensing=wanted))
        armed = engine(world).state.cluster
        assert [one.theta for one in armed.members] == [2.5, 5.0, 1.0]
        assert (armed.min_k, armed.context_tokens, armed.max_events) == (1, 2, 4)
        assert armed.history == 0


async def test_a_document_does_not_raise_the_context_that_the_operator_allows(make: Make) -> None:
    async with make(sensing_context_tokens=0) as world:
        await serving(world, replace(WEATHER, sensing=SensingOverrides(context_tokens=64)))
        assert (await world.cluster_sensing.status()).context_tokens == 0


async def test_each_arming_has_a_larger_number_which_an_unchanged_cluster_keeps(
    world: World,
) -> None:
    row = await serving(world)
    await world.cluster_sensing.enable(row.id)
    await world.profiles.activate(row.id)
    assert engine(world).state.cluster.history == 1
    await world.cluster_sensing.configure(row.id, 1)
    assert engine(world).state.cluster.history == 2
    await world.cluster_sensing.enable(row.id, enabled=False)
    await world.cluster_sensing.enable(row.id)
    assert engine(world).state.cluster.history == 3


async def test_after_a_crash_the_next_engine_senses_before_it_serves(world: World) -> None:
    await serving(world)
    first = engine(world)
    first.die()
    await until(lambda: world.conductor.resident is None)
    assert not (await world.cluster_sensing.status()).armed
    asked, stream = await world.in_flight()
    assert engine(world) is not first
    sensed = structs.replace(engine(world).state.cluster, history=first.state.cluster.history)
    assert sensed == first.state.cluster
    assert (await world.cluster_sensing.status()).armed
    stream.complete()
    await soon(asked)
    await world.cluster_sensing.settled()
    assert (await world.cluster_sensing.status()).armed


@pytest.mark.parametrize("is_forced", [True, False])
async def test_an_armed_cluster_takes_continuous_batching_away(make: Make, is_forced: bool) -> None:
    async with make(
        enable_continuous_batching=True,
        sensing_force_serial=is_forced,
    ) as world:
        row = await serving(world)
        assert world.generation.is_batching is not is_forced
        await world.cluster_sensing.enable(row.id, enabled=False)
        assert world.generation.is_batching


# ------------------------------------------------------------- events


async def test_what_fired_is_recorded_and_told_without_its_text(world: World) -> None:
    row = await serving(world)
    engine(world).on_spans(told(row))
    found = await world.cluster_sensing.events(50)
    (event,) = found.events
    assert found.total == 1
    body = plain(event)
    assert body | {"created_at": None} == {
        "id": 1,
        "profile_id": row.id,
        "request_id": "chatcmpl-1",
        "choice": 0,
        "phase": "prefill",
        "pos_start": 4,
        "pos_end": 4,
        "fired_members": [[3, 1.5]],
        "fired_count": 1,
        "score": 3.0,
        "ambient_fired_count": None,
        "context_text": "a b c",
        "context_token_ids": [1, 2, 3],
        "context_parts": {"before": "a", "span": " b", "after": " c"},
        "summary": "rain: 1/3",
        "truncated": False,
        "created_at": None,
    }
    (fired,) = world.published(ClusterFired)
    assert plain(fired.firing).items() <= body.items()
    assert not [name for name in fired.firing.__struct_fields__ if "context" in name]
    assert await world.cluster_sensing.event(1) == event
    assert (await refused(world.cluster_sensing.event(2))).code == "SENSING_EVENT_NOT_FOUND"
    status = await world.cluster_sensing.status()
    assert (status.events_recorded_since_start, status.last_request_overhead_ms) == (1, 0.25)


async def test_the_newest_five_of_a_choice_are_told_and_then_none_for_a_moment(
    tmp_path: Path,
) -> None:
    seconds = [0.0]
    async with doubles.world(tmp_path, seconds=lambda: seconds[0]) as world:
        row = await serving(world)

        async def flush(spans: int) -> int:
            engine(world).on_spans(told(row, spans))
            await world.cluster_sensing.recorder.settled()
            return len(world.published(ClusterFired))

        assert await flush(8) == 5
        starts = [one.firing.pos_start for one in world.published(ClusterFired)]
        assert starts == [10, 12, 14, 16, 18]
        seconds[0] = 0.0625
        assert await flush(2) == 5
        seconds[0] = 0.125
        assert await flush(1) == 6
        assert (await world.cluster_sensing.events(50)).total == 11
        assert (await world.cluster_sensing.status()).ws_events_throttled == 5
        assert world.metrics.total("sensing_events_total", kind="cluster") == 11


async def test_a_deleted_cluster_gets_no_events_any_more(world: World) -> None:
    row = await serving(world)
    engine(world).on_spans(told(row))
    await world.cluster_sensing.recorder.settled()
    await world.profiles.remove(row.id)
    assert not world.cluster_sensing.is_armed
    engine(world).on_spans(told(row))
    assert await world.cluster_sensing.events(50) == ClusterFirings([], 0)


async def test_slow_sensing_is_logged_once_a_minute_for_each_cluster(tmp_path: Path) -> None:
    seconds = [0.0]
    async with doubles.world(tmp_path, seconds=lambda: seconds[0]) as world:
        row = await serving(world)

        def lines(at: float, overhead_ms: float, subject: str) -> list[tuple[str, str]]:
            """What is logged of the end of a choice at this second."""
            seconds[0] = at
            with capture_logs() as logged:
                engine(world).on_spans(told(row, 0, overhead_ms=overhead_ms, subject=subject))
            return [(line["event"], line["subject"]) for line in logged]

        assert lines(0, 5.0, row.id) == []
        assert lines(0, 5.5, row.id) == [("sensing_is_slow", row.id)]
        assert lines(59, 7.5, row.id) == []
        assert lines(59, 5.5, "other") == [("sensing_is_slow", "other")]
        assert lines(60, 5.5, row.id) == [("sensing_is_slow", row.id)]
        assert lines(118, 5.5, "other") == []
        assert lines(119, 5.5, "other") == [("sensing_is_slow", "other")]
