"""The messages that the owner of the slot gets. `README.md` has the sequence of each message, with its failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steerserve.control.residency.engine_state import unchanged
from steerserve.control.residency.loading import Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.resident import Attachment, Switch
from steerserve.messages import Loaded
from steerserve.messages.engine import Engine
from steerserve.rules.residency.lock import LockedBy
from steerserve.rules.residency.memory_fit import ModelPlacement


class Message:
    """What the owner of the slot gets."""

    __slots__ = ()


# ---------------------------------------------------------------- what is asked for


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Load the model, once the model in the slot has been unloaded."""

    model: Occupant
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class EndLoad(Message):
    """End the load of the model, which does not serve yet."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class Unload(Message):
    """Unload the model, which serves."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class SetLock(Message):
    """Lock the model, or unlock it where `by` is None."""

    model: Occupant
    by: LockedBy | None


@dataclass(frozen=True, slots=True)
class HoldRequests(Message):
    """Let requests that do not run yet wait, or let them run again."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class Exchange(Message):
    """Put the SAEs `new` in the place of `old`. The engine has done so, or it has ended. `switch` changes the states of
    other owners in the same step."""

    model: Occupant
    old: Sequence[Attachment]
    new: Sequence[Attachment]
    switch: Switch = unchanged


@dataclass(frozen=True, slots=True)
class Close(Message):
    """End every work and every engine."""


# ---------------------------------------------------------------- what engines and works report


@dataclass(frozen=True, slots=True)
class Launched(Message):
    """The engine was started for the model."""

    model: Occupant
    engine: Engine


@dataclass(frozen=True, slots=True)
class EngineEnded(Message):
    """The engine of the model has ended."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class Outcome(Message):
    """What a work reports. `generation` is the generation that the model had when the work began."""

    model: Occupant
    generation: int


@dataclass(frozen=True, slots=True)
class Filled(Outcome):
    """The engine has loaded the model."""

    facts: Loaded
    placement: ModelPlacement


@dataclass(frozen=True, slots=True)
class Restored(Outcome):
    """The engine has the states that a crash took. `switch` lets the model serve with these states."""

    switch: Switch


@dataclass(frozen=True, slots=True)
class Done(Outcome):
    """The work is done. `then` is the handler that goes on."""

    then: Callable[[Occupant], None]


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """The work has failed."""

    error: Exception
