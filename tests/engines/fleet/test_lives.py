"""Replicas start, end, start again, are told what the others were told, and are taken away."""

from __future__ import annotations

import asyncio

import pytest

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.endings import NotStarted
from steerserve.rules.inference.stepping import CudaGraphs, Decoding
from steerserve.rules.residency.heartbeat import Activity, Sign
from steerserve.rules.residency.replicas import STARTS, ReplicaState, Strength, strength, wanted
from tests.engines.fleet.conftest import Made
from tests.engines.fleet.scripted import FIELDS, KEY, NO_ROOM, SOURCE, Scene, attached, detached
from tests.refusals import refused
from tests.scripted_answers import FACTS
from tests.scripted_engine import Launcher
from tests.waiting import soon, until

PLACED = m.PlacedSae(KEY, SOURCE, 1, "float32", False)
CLUSTER = m.ArmedCluster("c", "Cluster", KEY, [m.ClusterMember(3, 0.5)], 1, 10, 4)
CIRCUIT = m.ArmedCircuit("k", "Circuit", [m.CircuitFeature(KEY, 1, 3, 0.5)], [], 3, 10, 4)


# ------------------------------------------------------------- loads


async def test_a_load_gives_the_model_to_every_replica(scene: Made) -> None:
    one = await scene(3)
    assert [one.engine(number).loaded for number in range(3)] == [FIELDS] * 3
    assert one.prompts.facts.context_length == FACTS.context_length
    await one.serving("r1", "r2", "r3")


async def test_a_load_with_enough_replicas_goes_on_and_tries_the_others_again() -> None:
    one = Scene(3, least=2)
    failures = iter([None, OSError("no"), None])
    one.crew.prepare = lambda launcher: _fail(launcher, next(failures, None))
    await one.load()
    await one.serving("r1", "r2", "r3")
    await one.fleet.stop()


async def test_a_load_with_too_few_replicas_is_refused_and_leaves_nothing() -> None:
    one = Scene(2, least=2)
    refusal = Refusal("INSUFFICIENT_MEMORY", "too little")
    failures = iter([None, refusal])

    def prepare(launcher: Launcher) -> None:
        failure = next(failures)
        if failure is not None:
            launcher.fail("load", failure)

    one.crew.prepare = prepare
    why = await refused(one.load())
    assert why is refusal
    await one.fleet.stop()
    assert all(launcher.engine.ended.done() for launcher in one.crew.launchers)
    assert one.prompts.is_closed


async def test_a_load_without_replicas_that_can_be_started_says_so() -> None:
    one = Scene(2, least=1)
    one.crew.prepare = lambda launcher: launcher.fail("launch", NO_ROOM)
    with pytest.raises(NotStarted, match="no room"):
        await one.load()
    await one.fleet.stop()


async def test_the_progress_of_a_load_is_that_of_the_slowest_replica() -> None:
    one = Scene(2)
    reports: list[m.Progress] = []
    await soon(one.fleet.load(reports.append, **FIELDS))
    assert [report.percent for report in reports] == [50.0]
    await one.fleet.stop()


async def test_a_stop_during_the_load_ends_every_engine() -> None:
    one = Scene(2)
    one.crew.prepare = lambda launcher: launcher.hold("load") and None
    loading = asyncio.create_task(one.fleet.load(lambda _: None, **FIELDS))
    await until(lambda: len([x for x in one.crew.launchers if "load" in x.log]) == 2)
    loading.cancel()
    await asyncio.wait([loading])
    await soon(one.fleet.stop())
    assert all(launcher.engine.ended.done() for launcher in one.crew.launchers)


# ------------------------------------------------------------- after an end


async def test_a_replica_is_told_everything_before_it_serves_again(scene: Made) -> None:
    one = await scene(2)
    await one.fleet.change(lambda state: state.attached(PLACED))
    await one.fleet.change(m.setting(steering=m.Steering(4, True, {KEY: {3: 5.0}})))
    await one.fleet.change(m.setting(monitored=m.Monitored(KEY, [3], 5, 7)))
    await one.fleet.change(m.setting(cluster=CLUSTER))
    await one.fleet.change(m.setting(circuits=(CIRCUIT,)))
    one.hold("sense")
    await one.kill(0)
    gate = await one.held()
    assert one.states() == {"r1": ReplicaState.RESTORING, "r2": ReplicaState.SERVING}
    await one.served_by(1)
    # an edit goes on meanwhile, and the new replica is told it too
    await soon(one.fleet.change(m.setting(steering=m.Steering(5, False, {KEY: {3: 6.0}}))))
    gate.open.set()
    await one.serving("r1", "r2")
    new = one.engine(2)
    assert new.state == m.State(
        (PLACED,),
        m.Steering(5, False, {KEY: {3: 6.0}}),
        m.Monitored(KEY, [3], 5, 7),
        CLUSTER,
        (CIRCUIT,),
    )
    assert new._launcher.log.index("sense") > new._launcher.log.index("load")
    views = {view.name: view for view in one.fleet.replicas()}
    assert views["r1"].epoch == views["r2"].epoch == 6
    assert (views["r1"].restarts, views["r2"].restarts) == (1, 0)


async def test_a_replica_that_cannot_be_started_is_tried_with_growing_pauses() -> None:
    pauses: list[int] = []

    def pause(failures: int) -> float:
        pauses.append(failures)
        return 0.0

    one = Scene(2, pause=pause)
    await one.load()
    failures = iter([NO_ROOM, NO_ROOM])
    one.crew.prepare = lambda launcher: _fail(launcher, next(failures, None))
    await one.kill(1)
    await one.serving("r1", "r2")
    assert pauses == [1, 2, 3]
    assert one.fleet.replicas()[1].restarts == 3
    await one.fleet.stop()


async def test_a_fleet_ends_when_no_replica_serves_and_none_can_be_started(scene: Made) -> None:
    one = await scene(2)
    one.crew.prepare = lambda launcher: launcher.fail("launch", NO_ROOM)
    await one.kill(0)
    await until(lambda: one.replica("r1").failed_starts > STARTS)
    assert not one.fleet.ended.done()
    one.engine(1).die()
    waiting = one.ask()
    assert "no room" in await soon(one.fleet.ended)
    assert (await refused(waiting.text())).code in ("ENGINE_UNAVAILABLE", "MODEL_NOT_LOADED")
    assert one.prompts.is_closed


async def test_another_model_under_the_same_path_does_not_serve(scene: Made) -> None:
    one = await scene(2)
    one.crew.holds_another = True
    await one.kill(0)
    await until(lambda: one.replica("r1").failed_starts)
    assert "another vocabulary" in (one.replica("r1").reason or "")
    one.crew.holds_another = False
    await one.serving("r1", "r2")


async def test_signs_come_while_one_replica_is_alive(scene: Made) -> None:
    one = await scene(2)
    silent = Refusal("ENGINE_UNAVAILABLE", "silent")
    one.engine(0).heartbeat.stall(silent)
    assert one.fleet.heartbeat.sign() != one.fleet.heartbeat.sign()
    one.engine(1).heartbeat.stall(silent)
    one.engine(0).silent = Sign(Activity.DECODE, 7)
    assert one.fleet.heartbeat.sign() == one.fleet.heartbeat.sign()
    assert one.fleet.heartbeat.sign().activity is Activity.DECODE


async def test_a_silent_replica_is_stalled_then_lost_and_started_again() -> None:
    now = [0.0]
    one = Scene(2, clock=lambda: now[0])
    await one.load()
    one.engine(0).silent = Sign(Activity.IDLE, 1)
    lives, replica = one.fleet._lives, one.replica("r1")
    for _ in range(12):
        now[0] += 1.0
        lives._look(replica, one.engine(0))
    assert one.states()["r1"] is ReplicaState.STALLED
    one.engine(0).silent = None
    lives._look(replica, one.engine(0))
    assert one.states()["r1"] is ReplicaState.SERVING
    assert replica.reason is None
    one.engine(0).silent = Sign(Activity.IDLE, 1)
    one.hold("load")
    for _ in range(70):
        now[0] += 1.0
        if not one.engine(0).ended.done():
            lives._look(replica, one.engine(0))
    assert one.engine(0).ended.done()
    await until(lambda: len(one.crew.launchers) == 3)
    assert "no heartbeat" in (replica.reason or "")
    (await one.held()).open.set()
    await one.serving("r1", "r2")
    assert (replica.reason, replica.restarts) == (None, 1)
    await one.fleet.stop()


async def test_the_steering_passes_are_counted_over_all_engines(scene: Made) -> None:
    one = await scene(2)
    await one.fleet.change(attached)
    one.engine(0).tell(applied={KEY: 3})
    one.engine(1).tell(applied={KEY: 4})
    assert one.fleet.passes.applied == {KEY: 7}
    await one.kill(0)
    await one.serving("r1", "r2")
    one.engine(2).tell(applied={KEY: 1})
    assert one.fleet.passes.applied == {KEY: 8}
    await one.fleet.change(detached)
    assert one.fleet.passes.applied == {}


# ------------------------------------------------------------- changes of an operator


async def test_a_fleet_grows_and_shrinks_while_it_serves(scene: Made) -> None:
    one = await scene(1)
    await one.fleet.change(m.setting(steering=m.Steering(1, True, {})))
    await one.fleet.resize(3)
    await one.serving("r1", "r2", "r3")
    assert [one.engine(number).state.steering for number in (1, 2)] == [m.Steering(1, True, {})] * 2
    busy = one.ask()
    stream = await one.stream(0)
    await one.fleet.resize(1)
    await one.serving("r1")
    assert one.engine(1).ended.done()
    assert one.engine(2).ended.done()
    stream.complete()
    await busy.text()
    assert (await refused(one.fleet.resize(0))).code == "INVALID_PARAMETER"


async def test_a_replica_that_is_taken_away_finishes_its_requests_first(scene: Made) -> None:
    one = await scene(2)
    running = one.ask()
    stream = await one.stream(0)
    stream.start()
    await one.fleet.drain("r1")
    assert one.states() == {"r1": ReplicaState.DRAINING, "r2": ReplicaState.SERVING}
    await one.served_by(1, 1)
    # its rows follow the live steering to their end
    await soon(one.fleet.change(m.setting(steering=m.Steering(1, True, {}))))
    assert one.engine(0).state.steering == m.Steering(1, True, {})
    stream.say("the end", finish="stop")
    assert await running.text() == "the end"
    await one.serving("r2")
    assert one.engine(0).ended.done()
    assert one.changes[-1].state is ReplicaState.ENDED


async def test_what_a_drained_replica_has_not_begun_in_time_runs_elsewhere(scene: Made) -> None:
    one = await scene(2, drain_seconds=0.0)
    request = one.ask()
    (await one.stream(0)).start()
    await one.fleet.drain("r1")
    (await one.stream(1)).complete("elsewhere")
    assert await request.text() == "elsewhere"
    await one.serving("r2")


async def test_the_last_replica_is_not_drained_and_unknown_ones_are_refused(scene: Made) -> None:
    one = await scene(1)
    assert (await refused(one.fleet.drain("r1"))).code == "REPLICAS_UNAVAILABLE"
    for change in (one.fleet.drain("r9"), one.fleet.replace("r9")):
        assert (await refused(change)).code == "REPLICA_NOT_FOUND"


async def test_a_replaced_replica_goes_once_the_other_serves(scene: Made) -> None:
    one = await scene(1)
    one.hold("load")
    await one.fleet.replace("r1")
    gate = await one.held()
    assert one.states() == {"r1": ReplicaState.SERVING, "r2": ReplicaState.STARTING}
    views = one.fleet.replicas()
    assert [view.replaces for view in views] == [None, "r1"]
    assert (wanted(views), strength(views, 1)) == (1, Strength.WHOLE)
    gate.open.set()
    await one.serving("r2")
    assert one.engine(0).ended.done()
    assert one.fleet.replicas()[0].replaces is None


async def test_nothing_takes_the_place_of_a_replica_that_is_taken_away(scene: Made) -> None:
    one = await scene(2)
    one.hold("load")
    await one.fleet.replace("r1")
    await one.held()
    await one.fleet.resize(2)
    assert set(one.states()) == {"r1", "r2", "r3"}
    await one.fleet.drain("r1")
    await one.serving("r2")
    assert all(one.engine(place).ended.done() for place in (0, 2))


async def test_a_lost_replica_holds_no_memory(scene: Made) -> None:
    one = await scene(2)
    assert all(view.devices and view.memory_mb for view in one.fleet.replicas())
    one.hold("load")
    await one.kill(0)
    gate = await one.held()
    lost, other = one.fleet.replicas()
    assert (lost.devices, lost.memory_mb, lost.gpu_indices) == ((), (), ())
    assert other.devices
    gate.open.set()
    await one.serving("r1", "r2")


async def test_a_replica_stays_when_the_one_in_its_place_cannot_be_started(scene: Made) -> None:
    one = await scene(1)
    one.crew.prepare = lambda launcher: launcher.fail("launch", NO_ROOM)
    await one.fleet.replace("r1")
    await until(lambda: len(one.crew.launchers) > STARTS)
    await one.serving("r1")


async def test_a_drained_replica_that_ends_is_gone(scene: Made) -> None:
    one = await scene(2)
    running = one.ask()
    (await one.stream(0)).start()
    await one.fleet.drain("r1")
    one.engine(0).die()
    (await one.stream(1)).complete("elsewhere")
    assert await running.text() == "elsewhere"
    await one.serving("r2")


async def test_requests_get_the_parting_of_a_stop(scene: Made) -> None:
    one = await scene(2)
    requests = [one.ask(), one.ask()]
    await one.stream(0)
    await one.stream(1)
    parting = Refusal("SHUTTING_DOWN", "the service is shutting down")
    await soon(one.fleet.stop(parting))
    for request in (*requests, one.ask()):
        assert (await refused(request.text())).code == "SHUTTING_DOWN"


async def test_a_lost_fleet_ends_with_the_reason(scene: Made) -> None:
    one = await scene(2)
    request = one.ask()
    await one.stream(0)
    one.fleet.lose("it held what nobody knew")
    assert await soon(one.fleet.ended) == "it held what nobody knew"
    with pytest.raises(Refusal, match="it held what nobody knew"):
        await request.text()
    assert all(launcher.engine.ended.done() for launcher in one.crew.launchers)


def _fail(launcher: Launcher, error: Exception | None) -> None:
    if error is not None:
        launcher.fail("launch", error)


async def test_the_fleet_tells_what_has_changed_in_a_replica(scene: Made) -> None:
    """The threads are those of the replica with the fewest of its threads."""
    one = await scene(3)

    def told() -> tuple[object, object]:
        return one.fleet.passes.threads, one.fleet.passes.graphs

    assert told() == (None, None)
    for number, threads in enumerate((4, 1, 2)):
        one.engine(number).tell(threads=m.ThreadsChanged(threads, 4))
    graphs = m.GraphsChanged(CudaGraphs(Decoding.STATIC, "a recording failed"))
    one.engine(1).tell(graphs=graphs)
    assert told() == (m.ThreadsChanged(1, 4), graphs)
    await one.kill(1)
    assert told() == (m.ThreadsChanged(2, 4), None)
