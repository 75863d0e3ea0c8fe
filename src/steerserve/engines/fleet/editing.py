"""Edits of the state that every replica holds. Each edit is one step of the fleet's epoch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from steerserve.engines.fleet import setup as setups
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.roster import Roster
from steerserve.engines.fleet.setup import Setup
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency.replicas import EditAnswer, ReplicaState

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Edit(Generic[Result]):
    """One edit.

    Attributes:
        send: tells it to an engine.
        after: the setup after the edit, from the setup before it and the answer of the first engine.
        is_same: whether two engines answered the same.
        is_given_up: whether the caller has gone. An edit that was made all the same is then taken back.
        span: the setups before and after it, once it was made.
    """

    send: Callable[[Engine], Awaitable[Result]]
    after: Callable[[Setup, Result], Setup]
    is_same: Callable[[Result, Result], bool] = lambda _, __: True
    is_given_up: bool = False
    span: tuple[Setup, Setup] | None = None


@dataclass(frozen=True, slots=True)
class AskedEngine:
    """A replica that is asked to make an edit, with its engine. When this engine ends, the replica may get another one
    before the edit is over."""

    replica: Replica
    engine: Engine

    @property
    def is_alive(self) -> bool:
        return self.replica.engine is self.engine and self.replica.is_alive

    def acknowledge(self, epoch: int) -> None:
        if self.replica.engine is self.engine:
            self.replica.epoch = epoch

    def lose(self, reason: str) -> None:
        if self.replica.engine is self.engine:
            self.replica.lose(reason)


@dataclass(slots=True)
class Reply(Generic[Result]):
    """What one replica answered."""

    answer: EditAnswer
    result: Result | None = None
    error: Refusal | None = None


@dataclass(slots=True, eq=False)
class _Answers(Generic[Result]):
    """The answers to one edit so far. `first` is the first result."""

    edit: Edit[Result]
    first: list[Result] = field(default_factory=list)
    replies: dict[AskedEngine, Reply[Result]] = field(default_factory=dict)

    def take(self, member: AskedEngine, task: asyncio.Task[Result]) -> Reply[Result]:
        reply: Reply[Result]
        try:
            result = task.result()
        except Refusal as error:
            is_gone = not member.is_alive or error.code == "ENGINE_UNAVAILABLE"
            reply = Reply(EditAnswer.GONE if is_gone else EditAnswer.REFUSED, error=error)
        except (Exception, asyncio.CancelledError) as error:
            log.exception("edit_failed", replica=member.replica.name, reason=type(error).__name__)
            reply = Reply(EditAnswer.GONE)
        else:
            if self.first and not self.edit.is_same(self.first[0], result):
                why = Refusal("SAE_INCOMPATIBLE", "its files hold another SAE")
                reply = Reply(EditAnswer.REFUSED, error=why)
            else:
                self.first.append(result)
                reply = Reply(EditAnswer.ACCEPTED, result)
        self.replies[member] = reply
        return reply

    def settle(self) -> None:
        """Replicas that ended since they answered are gone."""
        for member, reply in self.replies.items():
            if not member.is_alive:
                reply.answer = EditAnswer.GONE

    def by(self, answer: EditAnswer) -> list[AskedEngine]:
        return [member for member, reply in self.replies.items() if reply.answer is answer]

    def refusal(self) -> Refusal:
        """Why no replica has made the edit."""
        replies = sorted(self.replies.values(), key=lambda r: r.answer is EditAnswer.GONE)
        error = next((reply.error for reply in replies if reply.error is not None), None)
        return error or Refusal("ENGINE_UNAVAILABLE", "every replica ended during the change")


class Editing:
    """Owner of the setup. `lock` is held by an edit, and by a replica that begins to serve.

    Args:
        check: raises the refusal of edits: the fleet has ended or is stalled.
    """

    def __init__(
        self,
        roster: Roster,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.setup = Setup()
        self.lock = asyncio.Lock()
        self._roster = roster
        self._check = check
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    async def make(self, edit: Edit[Result]) -> Result:
        """Make an edit on all replicas. Returns once every replica that serves has made it.

        A caller that gives up leaves every replica as it was: the edit goes on in a task of its own, which takes back
        what it has made.

        Raises:
            Refusal: no replica has made the edit, and nothing has changed.
        """
        task = self._spawn(self._make(edit))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            edit.is_given_up = True
            if edit.span is not None:
                # the caller has gone in the moment in which the edit was made
                self._spawn(self._undo(*edit.span))
            raise

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work, name="fleet-edit")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # read here, because the caller may have given up

    async def close(self) -> None:
        """Wait for the edits that are under way. The engines have ended, so each ends at once."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def join(self, replica: Replica) -> None:
        """Tell a replica what the others were told, and let it serve.

        Raises:
            Refusal: what its engine refuses.
        """
        told = self.setup
        await setups.bring(replica.running, Setup(), told)
        async with self.lock:
            if self.setup is not told:
                await setups.bring(replica.running, told, self.setup)
            replica.epoch = self._roster.epoch
            replica.served_at = self._clock()
            replica.move(ReplicaState.SERVING)

    # ------------------------------------------------------------- one edit

    async def _make(self, edit: Edit[Result]) -> Result:
        async with self._turn():
            before = self.setup
            members = self._begin()
            answers = await self._ask(members, edit)
            answers.settle()
            if not rules.is_accepted([reply.answer for reply in answers.replies.values()]):
                raise self._refuse(answers)
            self._leave_behind(answers)
            result = answers.first[0]
            after = self.setup = edit.after(before, result)
            if edit.is_given_up:
                await self._take_back(before, after)
            else:
                edit.span = before, after
            return result

    async def _undo(self, before: Setup, after: Setup) -> None:
        """Take an edit back that has been made, unless another edit was made since."""
        async with self._turn():
            if self.setup is after:
                await self._take_back(before, after)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the lock while a replica serves. The wait for one is without the lock, because a new replica needs it.

        Raises:
            Refusal: the fleet has ended or is stalled, or no replica finds a place.
        """
        while True:
            self._check()
            if self._roster.serving:
                async with self.lock:
                    self._check()
                    if self._roster.serving:
                        yield
                        return
            else:
                await self._roster.change_for_work()

    def _begin(self) -> list[AskedEngine]:
        """Raise the epoch, and return the replicas that are asked. A stalled replica would miss the edit, so it is
        lost."""
        self._roster.epoch += 1
        members = []
        for replica in self._roster.replicas:
            if replica.has_state and replica.is_alive:
                members.append(AskedEngine(replica, replica.running))
            elif replica.has_state:
                replica.lose("the engine stood still while its steering or its SAEs changed")
        return members

    async def _ask(self, members: Sequence[AskedEngine], edit: Edit[Result]) -> _Answers[Result]:
        """Ask all replicas at once. Each may have requests again as soon as it has made the edit. After the first
        answer, the others have a bounded time."""
        answers, began = _Answers(edit), self._clock()
        tasks = {asyncio.create_task(_sent(edit.send, member.engine)): member for member in members}
        waiting, deadline = set(tasks), None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - self._clock())
            done, waiting = await asyncio.wait(
                waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                for task in waiting:
                    task.cancel()
                done, waiting = await asyncio.wait(waiting)
            for task, member in tasks.items():
                if task not in done:
                    continue
                if answers.take(member, task).answer is EditAnswer.ACCEPTED:
                    member.acknowledge(self._roster.epoch)
                    self._roster.tell()
            if deadline is None and answers.first:
                now = self._clock()
                deadline = now + rules.edit_patience(now - began)
        return answers

    def _leave_behind(self, answers: _Answers[Result]) -> None:
        """Replicas that did not make an edit that others made are lost."""
        what = "the engine did not make a change that other replicas made"
        for member, reply in answers.replies.items():
            if reply.answer is not EditAnswer.ACCEPTED:
                member.lose(f"{what}: {reply.error.message}" if reply.error is not None else what)

    def _refuse(self, answers: _Answers[Result]) -> Refusal:
        """No replica has made the edit: those that refused it serve on as before."""
        for member in answers.by(EditAnswer.GONE):
            member.lose(
                "the engine ended, or stood still, during a change of its steering or its SAEs"
            )
        for member in answers.by(EditAnswer.REFUSED):
            member.acknowledge(self._roster.epoch)
        self._roster.tell()
        return answers.refusal()

    async def _take_back(self, before: Setup, after: Setup) -> None:
        """Bring the replicas back to the setup before an edit whose caller has gone."""
        members = self._begin()
        self.setup = before
        works = [setups.bring(member.engine, after, before) for member in members]
        results = await asyncio.gather(*works, return_exceptions=True)
        for member, result in zip(members, results, strict=True):
            if isinstance(result, BaseException):
                member.lose("the engine could not take back a change that had been given up")
            else:
                member.acknowledge(self._roster.epoch)
        self._roster.tell()


async def _sent(send: Callable[[Engine], Awaitable[Result]], engine: Engine) -> Result:
    return await send(engine)
