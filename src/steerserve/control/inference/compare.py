"""Comparisons: one prompt is completed at several intensities of steering, as one request in one batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.positions import late_parts, with_own_chunks
from steerserve.control.metrics import Metrics
from steerserve.control.models.served import ServedModel, ServedModels
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.control.retry import DefaultedLog
from steerserve.control.steering.serving import Serving
from steerserve.errors import Refusal
from steerserve.messages import Outcome, Piece, Started
from steerserve.messages.events import FinishReason
from steerserve.rules.inference.compare import Overlay
from steerserve.rules.models import architecture


@dataclass(slots=True)
class Side:
    """One completion. `steering` has its values by attachment (`sae_id@layer`), `edits` its edits as they were sent, of
    which `intensity` is the strength, and `state` says which steering that is
    (`rules/steering/digest.py`). `parts` has what parts of the request gave, in its order."""

    intensity: float
    steering: Overlay
    edits: Sequence[Mapping[str, object]] = ()
    state: str | None = None
    text: str = ""
    tokens: int = 0
    finish: FinishReason | None = None
    parts: list[Mapping[str, msgspec.Raw]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison, with its sides in the order of the request's intensities. `parts` has the plans of the request's
    parts, by their names."""

    model: str
    fingerprint: str
    prompt_tokens: int
    parts: Mapping[str, Any]
    sides: list[Side] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Comparing:
    """A comparison that runs. `events` has the pieces of all sides as they are written, each with the number of its
    side as its choice; the sides of `compared` hold the texts so far."""

    compared: Compared
    events: AsyncIterator[Piece]


class Compare:
    """Runs comparisons on the resident model; it never loads one."""

    def __init__(
        self,
        generation: Generation,
        models: ServedModels,
        conductor: Conductor,
        serving: Serving,
        metrics: Metrics,
    ) -> None:
        self._generation = generation
        self._models = models
        self._conductor = conductor
        self._serving = serving
        self._metrics = metrics

    async def model(self) -> ServedModel:
        """The model that comparisons run on.

        Raises:
            Refusal: MODEL_NOT_LOADED; INVALID_PARAMETER for a model that can only embed.
        """
        row = self._conductor.loaded().row
        architecture.check_generates(row.name, row.architecture, row.engine)
        return await self._models.served_model(row)

    @asynccontextmanager
    async def open(self, asked: Asked, model: ServedModel) -> AsyncIterator[Comparing]:
        """Begin to complete the prompt once at each intensity of the request's sweep. Leaving the block early ends the
        comparison.

        Raises:
            Refusal: every refusal of an inference request; SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, PROFILE_NOT_FOUND,
                PROFILE_INCOMPATIBLE, VALIDATION_ERROR. The events raise STEERING_CHANGED when an operator changed the
                steering while the comparison ran. The operator's change stays, and the comparison has no result.
        """
        assert asked.steering is not None
        assert asked.steering.sweep is not None
        intensities = asked.steering.sweep.intensities
        async with self._generation.open(asked, model) as run:
            events = aiter(run.events)
            started = await anext(events)
            assert isinstance(started, Started)
            admitted = run.admitted
            resident = self._conductor.resident
            compared = Compared(
                run.model_name,
                run.fingerprint,
                started.prompt_tokens[0],
                admitted.parts,
                [
                    Side(intensity, plan.overlay or {}, plan.sent, state)
                    for intensity, plan, state in zip(
                        intensities, admitted.swept, admitted.states, strict=True
                    )
                ],
            )
            pieces = with_own_chunks(events, late) if (late := late_parts(admitted)) else events
            yield Comparing(compared, self._written(compared, pieces, admitted.epoch, resident))

    async def run(self, asked: Asked, model: ServedModel) -> Compared:
        """The comparison once all sides are complete.

        Raises:
            Refusal: as `open`, and as its events.
        """
        async with self.open(asked, model) as comparing:
            async for _ in comparing.events:
                pass
        return comparing.compared

    def failed(self, refusal: Refusal) -> DefaultedLog:
        """Count a comparison that failed after the beginning of its answer was sent. Returns the log of the service for
        a `retry_after` without a rule."""
        self._metrics.failed(refusal.code)
        return self._metrics.defaulted

    async def _written(
        self,
        compared: Compared,
        events: AsyncIterator[Started | Outcome],
        epoch: int,
        resident: Resident | None,
    ) -> AsyncIterator[Piece]:
        """The pieces, each noted at its side."""
        async for piece in events:
            self._check_epoch(epoch, resident)
            assert isinstance(piece, Piece)
            side = compared.sides[piece.choice]
            side.text += piece.text
            side.tokens, side.finish = piece.tokens or side.tokens, piece.finish or side.finish
            if piece.parts:
                side.parts.append(piece.parts)
            yield piece
        self._check_epoch(epoch, resident)

    def _check_epoch(self, epoch: int, resident: Resident | None) -> None:
        if self._serving.live.epoch == epoch:
            return
        engine = resident.engine if resident is not None else None
        if engine is not None and engine.ended.done():
            return  # the live values went with the engine, and the events say that it has ended
        raise Refusal(
            "STEERING_CHANGED", "the steering was changed while the comparison ran; ask again"
        )
