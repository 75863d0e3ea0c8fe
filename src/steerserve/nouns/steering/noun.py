"""Hands the live steering values to the service."""

from __future__ import annotations

from steerserve.control.steering.events import SteeringUpdate
from steerserve.control.steering.steering import Steering
from steerserve.nouns.noun import Noun
from steerserve.nouns.steering.routes import router

STEERING = Noun(
    name="steering",
    owner=lambda world: Steering(world.conductor, world.bus),
    routes=lambda owner, _: router(owner),
    events=(SteeringUpdate,),
    changes={
        ("POST", "/api/saes/steering"): "steering_set",
        ("POST", "/api/saes/steering/batch"): "steering_set",
        ("POST", "/api/saes/steering/enable"): "steering_enable",
        ("POST", "/api/saes/steering/disable"): "steering_disable",
        ("DELETE", "/api/saes/steering/{index}"): "steering_remove",
        ("DELETE", "/api/saes/steering"): "steering_clear",
    },
)
