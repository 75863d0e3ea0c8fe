"""Hands the sensing of circuits to the service."""

from __future__ import annotations

from steerserve.control.sensing.recorder import Recorder
from steerserve.database.sensing import FiringStore
from steerserve.database.tables import circuit_sensing_events
from steerserve.nouns.circuit_sensing.form import CircuitFired
from steerserve.nouns.circuit_sensing.owner import CircuitSensing
from steerserve.nouns.circuit_sensing.routes import router
from steerserve.nouns.noun import Noun, World


def _owner(world: World) -> CircuitSensing:
    settings, seconds = world.settings, world.seconds
    store = FiringStore(
        world.database,
        circuit_sensing_events,
        settings.circuit_sensing_max_events_per_circuit,
        settings.circuit_sensing_max_age_days,
        world.now,
        seconds,
    )
    counted = world.metrics.circuit_sensing
    recorder = Recorder(store, counted, settings.circuit_sensing_max_overhead_ms, seconds)
    return CircuitSensing(
        settings, world.circuit_store, world.steering, world.conductor, world.bus, recorder
    )


CIRCUIT_SENSING = Noun(
    name="circuit_sensing",
    owner=_owner,
    routes=lambda owner, world: router(owner),
    tables=(circuit_sensing_events,),
    events=(CircuitFired,),
    changes={
        ("DELETE", "/api/circuit-sensing/events"): "circuit_sensing_delete",
        ("POST", "/api/circuit-sensing/{circuit_id}/enable"): "circuit_sensing_enable",
        ("POST", "/api/circuit-sensing/{circuit_id}/disable"): "circuit_sensing_disable",
    },
    close=CircuitSensing.close,
)
