"""Hands the pins to the service."""

from __future__ import annotations

from steerserve.nouns.noun import Noun

from .form import PinSet
from .owner import Pins
from .routes import router
from .store import PinStore, pins

PINS = Noun(
    name="pins",
    owner=lambda world: Pins(PinStore(world.database), world.bus),
    routes=lambda owner, _: router(owner),
    tables=(pins,),
    events=(PinSet,),
    changes={("PUT", "/api/pins/{sae_id}/{index}"): "pin_set"},
)
