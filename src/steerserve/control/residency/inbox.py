"""The messages that the owner of the slot gets. `README.md` has the sequence of each message, with its failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steerserve.control.residency.engine_state import unchanged
from steerserve.control.residency.loading import Prepared
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.resident import Attachment, Switch
from steerserve.errors import Refusal
from steerserve.messages import Loaded
from steerserve.messages.engine import Engine
from steerserve.rules.residency.lock import LockedBy
from steerserve.rules.residency.memory_fit import ModelPlacement

# ---------------------------------------------------------------- what is asked for


@dataclass(frozen=True, slots=True)
class Load:
    """Load the model, once the model in the slot has been unloaded."""

    model: Occupant
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class EndLoad:
    """End the load of the model, which does not serve yet."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload the model, which serves."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class SetLock:
    """Lock the model, or unlock it where `by` is None."""

    model: Occupant
    by: LockedBy | None


@dataclass(frozen=True, slots=True)
class HoldRequests:
    """Let requests wait that have a slot of the queue and do not run yet, or let them run again."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """Put the SAEs `new` in the place of `old`. The engine has done so, or it has ended. `switch` changes the states of
    other owners in the same step."""

    model: Occupant
    old: Sequence[Attachment]
    new: Sequence[Attachment]
    switch: Switch = unchanged


@dataclass(frozen=True, slots=True)
class Close:
    """End every work and every engine."""


# ---------------------------------------------------------------- what engines and works report


@dataclass(frozen=True, slots=True)
class Launched:
    """The engine was started for the model."""

    model: Occupant
    engine: Engine


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine of the model has ended."""

    model: Occupant


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a work reports. `generation` is the generation that the model had when the work began."""

    model: Occupant
    generation: int


@dataclass(frozen=True, slots=True)
class Recorded(Outcome):
    """The record says that the model is loading."""


@dataclass(frozen=True, slots=True)
class Drained(Outcome):
    """The resident model is unused. It leaves for `model`, or is itself `model`."""


@dataclass(frozen=True, slots=True)
class Left(Outcome):
    """The engine of the model has ended, and everything that belonged to the engine is cleared."""


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
class Serves(Outcome):
    """The records say that the model is loaded and its SAEs are attached."""


@dataclass(frozen=True, slots=True)
class GivenUp(Outcome):
    """What was made for a load without success is cleared: no engine is left, and the record has the reason."""

    why: Refusal


@dataclass(frozen=True, slots=True)
class Failed:
    """The work that should have ended with `expected` has failed."""

    expected: Outcome
    error: Exception


Message = (
    Load | EndLoad | Unload | SetLock | HoldRequests | Exchange | Close
    | Launched | EngineEnded | Outcome | Failed
)  # fmt: skip
