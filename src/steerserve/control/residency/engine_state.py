"""State that an engine holds for one of its owners: what the owner loses when the engine ends by itself, and what the
owner gives to the next engine. Attached SAEs, steering and monitoring are such states."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.messages.engine import Engine

Loss = TypeVar("Loss")


def unchanged() -> None:
    """A switch that changes nothing."""


@dataclass(frozen=True, slots=True)
class Return:
    """A model that was loaded into a new engine and does not serve yet. `attached` are the SAEs that this engine has so
    far; an owner that attaches an SAE appends it."""

    model_id: int
    engine: Engine
    attached: list[Attachment] = field(default_factory=list)


class EngineState(Generic[Loss]):
    """An owner derives from this class, overrides what concerns it, and registers with `Restoring.register`.

    `put_back` and `part` are contexts: the engine is told on entering, and the owner's lock is held inside. The switch
    that a context yields is called inside, at the moment the change comes into force; it does not wait. A context that
    is left without a call of its switch has changed nothing.
    """

    def lost(self, resident: Resident) -> Loss | None:
        """The state that this owner had in the engine of the resident model; None for no state. The engine has just
        ended by itself."""
        return None

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], Loss | None]
    ) -> AsyncIterator[Switch]:
        """Give the new engine what every engine of this owner has, and what was lost. `loss` answers what the last
        engine of this model lost, None for nothing. It is called as late as possible: an operator may change the loss
        until then.

        Raises:
            Refusal: the load of the model fails with it.
        """
        yield unchanged

    @asynccontextmanager
    async def part(self, gone: Sequence[str]) -> AsyncIterator[Switch]:
        """The attachments change: the SAEs of the keys `gone` are detached, or, with none, others are attached."""
        yield unchanged


class Losses(Generic[Loss]):
    """The states that one owner lost in crashes, by the id of the model, until that model is loaded again. The owner
    edits its losses when an operator changes the state before that."""

    def __init__(self) -> None:
        self._by_model: dict[int, Loss] = {}

    def items(self) -> list[tuple[int, Loss]]:
        return list(self._by_model.items())

    def loss_of(self, model_id: int) -> Loss | None:
        return self._by_model.get(model_id)

    def replace(self, model_id: int, loss: Loss) -> None:
        self._by_model[model_id] = loss

    def edit(self, step: Callable[[Loss], Loss]) -> bool:
        """Replace every loss by what `step` makes of it, and return whether any loss changed. A step that changes
        nothing returns the loss itself."""
        after = {model_id: step(loss) for model_id, loss in self._by_model.items()}
        is_change = any(after[model_id] is not loss for model_id, loss in self._by_model.items())
        self._by_model = after
        return is_change

    def forget(self, model_id: int) -> None:
        self._by_model.pop(model_id, None)

    def clear(self) -> None:
        self._by_model.clear()

    def __contains__(self, model_id: int) -> bool:
        return model_id in self._by_model

    def __bool__(self) -> bool:
        return bool(self._by_model)
