"""Gives each request to a replica, and to another one when that replica ends, or stalls, before the answer has
begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog
from msgspec.structs import replace

from steerserve import messages as m
from steerserve.engines.checkpoint.prompts import PromptMaker, make_tokens
from steerserve.engines.fleet.affinity import Affinity, chain
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.roster import Roster
from steerserve.errors import Refusal
from steerserve.messages.engine import Answers, Engine
from steerserve.rules.residency import replicas as rules

log = structlog.get_logger(__name__)

_ENDED = frozenset({"ENGINE_UNAVAILABLE", "MODEL_NOT_LOADED", "SHUTTING_DOWN"})
"""The codes with which an engine that has ended refuses a request."""


class _Overtaken(Exception):
    """An edit began between the choice of a replica and the beginning of the request on it."""


class _Still(Exception):
    """The engine of a request without an outcome is stalled; the text says for how long."""


class Requests:
    """Owner of the choice of replicas. Which replica holds which beginning of a prompt is in `affinity`. Requests with
    a seed and requests without one wait separately, because they need not wait for the same replicas.

    Args:
        steering: gives the live steering of the replicas.
        note: is called when a completion begins on an engine.
    """

    def __init__(
        self,
        roster: Roster,
        prompts: PromptMaker,
        steering: Callable[[], m.Steering],
        note: Callable[[Engine], None],
    ) -> None:
        self._steering = steering
        self._roster = roster
        self._prompts = prompts
        self._note = note
        self._doors = {is_seeded: asyncio.Lock() for is_seeded in (False, True)}
        self.affinity = Affinity()

    async def stream(self, request: m.Request) -> Answers:
        """The events of one request, from whichever replica runs it. Started is yielded once.

        Raises:
            Refusal: the refusal of the prompts or of the engine; ENGINE_UNAVAILABLE when the replica ended after a part
                of the answer, or when the request ended RUNS replicas.
        """
        self._roster.check()
        tokens = await self._tokens(request)
        links = chain(tokens[0].ids) if tokens else []
        goal = request.goal
        rows = len(tokens) * goal.rows
        size = goal.rows * sum(len(one.ids) + goal.promised for one in tokens)
        runs, is_started, has_outcome = 0, False, False
        while True:
            replica = await self._replica(links, is_seeded=goal.is_seeded)
            engine, runs = replica.running, runs + 1
            self.affinity.note(links, replica.number)
            replica.given_up.discard(request.name)
            try:
                with replica.holding(rows, size, self._roster.turn()):
                    async with aclosing(engine.run(replace(request, prompts=tokens))) as events:
                        coming = self._begin(events, request, replica)
                        while not has_outcome:
                            event = await _unless_still(coming, engine)
                            has_outcome = not isinstance(event, m.Started)
                            if has_outcome or not is_started:
                                is_started = True
                                yield event
                            if not has_outcome:
                                coming = anext(events)
                        async for event in events:
                            yield event
                return
            except _Overtaken:
                runs -= 1
                continue
            except _Still as still:
                why = str(still)
                replica.given_up.add(request.name)
            except Refusal as refusal:
                if not engine.ended.done() or refusal.code not in _ENDED:
                    raise
                why = engine.ended.result()
            self._roster.check()
            if not rules.may_run_again(runs, has_outcome=has_outcome):
                raise _gone(why, has_outcome=has_outcome)
            log.info("request_runs_again", replica=replica.name, runs=runs)

    async def _begin(
        self, events: Answers, request: m.Request, replica: Replica
    ) -> m.Started | m.Outcome:
        """The first event. The check of the epoch and the write to the engine are one step, which does not wait.

        Raises:
            _Overtaken: an edit began since the replica was chosen.
        """
        if replica.epoch != self._roster.epoch:
            raise _Overtaken
        if request.goal.writes:
            self._note(replica.running)
        return await anext(events)

    async def _tokens(self, request: m.Request) -> list[m.Tokens]:
        try:
            return await make_tokens(self._prompts, request, self._steering)
        except Refusal as refusal:
            if refusal.code == "SHUTTING_DOWN":
                self._roster.check()  # the processes that make tokens end with the fleet
            raise

    async def _replica(self, links: Sequence[bytes], *, is_seeded: bool) -> Replica:
        """The replica that gets a request now. Waits while none may, first come first served."""
        roster = self._roster
        async with self._doors[is_seeded]:
            while True:
                kind = roster.seeded_kind() if is_seeded else None
                held = self.affinity.held(links)
                candidates = [r.candidate(held.get(r.number, 0)) for r in roster.replicas]
                place = rules.choose(candidates, roster.epoch, kind, roster.slots)
                if place is not None:
                    return roster.replicas[place]
                await roster.change_for_work()


async def _unless_still(
    coming: Awaitable[m.Started | m.Outcome], engine: Engine
) -> m.Started | m.Outcome:
    """The next event of a request that has no outcome yet. The wait for it ends when the engine is stalled, because
    another replica can run the request.

    Raises:
        Refusal: the refusal of the engine.
        _Still: the engine is stalled.
    """
    event = asyncio.ensure_future(coming)
    still = asyncio.ensure_future(engine.heartbeat.stalling.wait())
    try:
        await asyncio.wait({event, still}, return_when=asyncio.FIRST_COMPLETED)
        if not event.done() and (stalled := engine.heartbeat.stalled) is not None:
            raise _Still(stalled.message)
        return await event
    finally:
        still.cancel()
        if not event.done():
            # the events can be closed only once nobody reads them
            event.cancel()
            await asyncio.wait({event})
        if not event.cancelled():
            event.exception()  # the engine may have ended when the request did


def _gone(reason: str, *, has_outcome: bool) -> Refusal:
    """The refusal of a request whose replica ended."""
    what = (
        "the replica that wrote this answer ended"
        if has_outcome
        else "each replica ended that ran this request"
    )
    return Refusal("ENGINE_UNAVAILABLE", f"{what} ({reason}); the same request may be sent again")
