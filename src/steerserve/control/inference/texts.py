"""Texts that a job reads on the resident model, some at a time, in slots that no request waits for or beside them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.queue import Queue
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.nouns.contrasts import rules as contrast
from steerserve.parts.part import Part
from steerserve.rules.inference import pacing
from steerserve.rules.inference.prompts import Conversation

TEXTS_AT_ONCE = 8
"""The texts of one part of a job, which run together in one slot."""
_NOT_OF_TEXT = ("MODEL_NOT_LOADED", "MODEL_BUSY", "SAE_NOT_ATTACHED")

Read = TypeVar("Read")
Take = Callable[[m.Outcome], Read | None]
"""Gives what is read of a text from an outcome of its choice; None where the outcome does not have it."""
Taking = Callable[[], Take[Read]]
"""Begins to take what is read of the texts of one request."""


@runtime_checkable
class _Timed(Protocol):
    """An outcome that says how many seconds the engine worked for it."""

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text, and the place in the request that names it in refusals."""

    name: str
    prompt: m.Prompt


@dataclass(frozen=True, slots=True)
class Turn(Generic[Read]):
    """What a part of a job gave, and the seconds of the pause after it. The pause comes after the last part too where
    the part `is_paced`."""

    read: list[Read]
    pause: float
    is_paced: bool


class TextReader:
    """Reads texts for jobs."""

    def __init__(self, conductor: Conductor, queue: Queue) -> None:
        self._conductor = conductor
        self._queue = queue

    async def read(
        self,
        texts: Sequence[NamedText],
        resident: Resident,
        request: m.Request,
        taking: Taking[Read],
        *,
        check: Callable[[], object],
        told: Callable[[int], None] | None = None,
        is_gentle: bool = False,
        at_once: int = TEXTS_AT_ONCE,
        choices: int = 1,
    ) -> list[Read]:
        """What is read of each text. The `request` is sent with some of the texts as its prompts, and has so many
        `choices` for each; `taking` begins to take what is read from its outcomes: all of the first text, then all of
        the second. `check` is asked before each part of `at_once` texts, and `told` gets the number of texts that are
        read so far. Parts take turns with requests that run; with `is_gentle` they leave the time to them
        (`rules/inference/pacing.py`).

        Raises:
            Refusal: those of `check`, and those of an inference request; of the first text that is refused, with its
                name.
        """
        found: list[Read] = []
        while (done := len(found) // choices) < len(texts):
            some = _alike(texts[done : done + at_once])
            work = partial(_part, some, resident, request, taking, choices)
            turn = await self.turn(resident, work, check=check, is_gentle=is_gentle)
            found += turn.read
            if told is not None:
                told(len(found))
            if turn.pause and (turn.is_paced or len(found) < choices * len(texts)):
                await asyncio.sleep(turn.pause)
        return found

    async def turn(
        self,
        resident: Resident,
        work: Callable[[], Awaitable[list[Read]]],
        *,
        check: Callable[[], object],
        is_gentle: bool = False,
    ) -> Turn[Read]:
        """Do a part of a job once it has a slot, or beside the slots.

        Raises:
            Refusal: those of `check`, which is asked then, and those of the work.
        """
        async with self._queue.spare() as part, self._conductor.in_flight(resident):
            check()
            is_paced = part.is_beside or (is_gentle and self.is_used)
            begun = time.monotonic()
            read = await work()
            seconds = time.monotonic() - begun
        if not self.is_used:
            return Turn(read, 0.0, is_paced)
        # without a pace, requests take at most twice as long
        pause = pacing.pause(seconds, _worked(read)) if is_paced else seconds
        return Turn(read, pause, is_paced)

    @property
    def is_used(self) -> bool:
        """Whether a request runs."""
        return self._queue.counts().holding > 0


def _worked(read: Sequence[object]) -> float | None:
    """How long the engine worked for texts; None where it does not say so."""
    told = [one.seconds for one in read if isinstance(one, _Timed)]
    return sum(told) if told else None


def _alike(texts: Sequence[NamedText]) -> list[NamedText]:
    """The first of these texts that are all texts, or all conversations, as the prompts of one request are."""
    is_chat = isinstance(texts[0].prompt, m.Chat)
    return list(takewhile(lambda one: isinstance(one.prompt, m.Chat) is is_chat, texts))


async def _part(
    part: Sequence[NamedText],
    resident: Resident,
    request: m.Request,
    taking: Taking[Read],
    choices: int,
) -> list[Read]:
    try:
        return await _together(part, resident, request, taking, choices)
    except Refusal as refusal:
        if len(part) == 1 or not _is_of_text(refusal):
            raise
    # alone, the text that was refused is known
    found: list[Read] = []
    for one in part:
        found += await _together([one], resident, request, taking, choices)
    return found


async def _together(
    part: Sequence[NamedText],
    resident: Resident,
    request: m.Request,
    taking: Taking[Read],
    choices: int,
) -> list[Read]:
    """What is read of some texts in one request.

    Raises:
        Refusal: with the name of the text, where there is one text.
    """
    found: dict[int, Read] = {}
    take = taking()
    sent = structs.replace(request, prompts=[one.prompt for one in part])
    try:
        async with aclosing(resident.held().run(sent)) as events:
            async for event in events:
                if not isinstance(event, m.Started) and (read := take(event)) is not None:
                    found[event.choice] = read
    except Refusal as refusal:
        if len(part) > 1 or not _is_of_text(refusal):
            raise
        name = part[0].name
        why = f"{name}: {refusal.message}"
        raise Refusal(refusal.code, why, param=name, **refusal.details) from None
    return [found[choice] for choice in range(choices * len(part))]


def of_kind(kind: type[Read]) -> Taking[Read]:
    """Takes the outcomes of this class."""
    return lambda: lambda outcome: outcome if isinstance(outcome, kind) else None


def of_part(part: Part[Any, Read]) -> Taking[Read]:
    """Takes what scored texts have of a part."""

    def take_score(outcome: m.Outcome) -> Read | None:
        return part.read(outcome.parts) if isinstance(outcome, m.Scored) else None

    return lambda: take_score


@dataclass(frozen=True, slots=True)
class ReadPieces(Generic[Read]):
    """All pieces that a part gave of one text, and how long the engine worked for it."""

    pieces: list[Read]
    seconds: float


def of_pieces(part: Part[Any, Read]) -> Taking[ReadPieces[Read]]:
    """Takes what texts have of a part that are read for it alone."""

    def taking() -> Take[ReadPieces[Read]]:
        held: dict[int, list[Read]] = {}

        def take_pieces(outcome: m.Outcome) -> ReadPieces[Read] | None:
            if not isinstance(outcome, m.PartsRead):
                return None
            pieces = held.setdefault(outcome.choice, [])
            if (piece := part.read(outcome.parts)) is not None:
                pieces.append(piece)
            return ReadPieces(pieces, outcome.seconds) if outcome.is_last else None

        return take_pieces

    return taking


def _is_of_text(refusal: Refusal) -> bool:
    """Whether a text is refused, and not every request at this moment."""
    return refusal.code not in _NOT_OF_TEXT and refusal.row.api < 500


def prompt_of(
    text: str | Conversation, client: str, *, is_located: bool = False
) -> m.Text | m.Chat:
    """The prompt of a text, or of a conversation, which the template renders for this client. With `is_located` the
    contents of its messages are found."""
    if isinstance(text, str):
        return m.Text(text)
    return m.Chat([dict(message) for message in text], client=client, is_located=is_located)


def held_out(count: int, holdout: float, seed: int, group: str) -> frozenset[int]:
    """The places of the texts of a group that are held out. The seed decides which."""
    order = list(range(count))
    random.Random(f"{seed} {group}").shuffle(order)  # noqa: S311 -- it must be repeatable
    return frozenset(order[: contrast.held_out(count, holdout)])
