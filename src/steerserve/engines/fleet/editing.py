"""Changes of the state that every replica holds. Each edit is one step of the fleet's epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from steerserve import messages as m
from steerserve.engines.fleet.replica import Replica
from steerserve.engines.fleet.roster import Roster
from steerserve.errors import Refusal
from steerserve.messages.carried import carry_on
from steerserve.messages.engine import Engine
from steerserve.rules.residency import replicas as rules
from steerserve.rules.residency.replicas import EditAnswer, ReplicaState

log = structlog.get_logger(__name__)
Facts = Mapping[str, m.Attached]
Send = Callable[[Engine, m.State], Awaitable[Facts]]


@dataclass(frozen=True, slots=True)
class Told:
    """What every replica was told.

    Attributes:
        facts: the facts of each attached SAE, as the first replica answered them.
        counted: the key of the SAE whose statistics are counted; they stay when monitoring ends.
    """

    state: m.State = field(default_factory=m.State)
    facts: Facts = field(default_factory=dict)
    counted: str | None = None

    def after(self, state: m.State, made: Facts) -> Told:
        """What they were told once they are in this state. `made` has the facts of its new SAEs."""
        known = {**self.facts, **made}
        counted = self.counted if state.monitored is None else state.monitored.key
        return Told(
            state,
            {key: known[key] for key in state.keys},
            counted if counted in state.keys else None,
        )


def are_same(made: Facts, others: Facts) -> bool:
    """Whether two engines hold the same SAE under each key that both have."""
    return all(_identity(made[key]) == _identity(others[key]) for key in made.keys() & others)


def _identity(facts: m.Attached) -> tuple[int, int, str, str]:
    return facts.d_in, facts.d_sae, facts.site, facts.dtype


async def tell(engine: Engine, told: Told) -> None:
    """Bring one engine to what the others were told. SAEs that are not among them are detached first, so that there is
    memory for the others.

    Raises:
        Refusal: what the engine refuses; SAE_INCOMPATIBLE where the files of an SAE hold another SAE on its node.
    """
    if gone := told.state.since(engine.state).gone:
        await engine.change(lambda state: state.detached(*gone))
    if engine.state != told.state:
        made = await engine.change(lambda _: told.state)
        for key, facts in made.items():
            if not are_same({key: facts}, told.facts):
                raise Refusal("SAE_INCOMPATIBLE", f"the files of {key} hold another SAE there")


async def _change(engine: Engine, state: m.State) -> Facts:
    return await engine.change(lambda _: state)


@dataclass(slots=True, eq=False)
class Edit:
    """One edit.

    Attributes:
        step: the change of the state.
        send: asks an engine to make it; gets the state after it.
        on_made: is called once it is made.
    """

    step: m.Step
    send: Send = _change
    on_made: Callable[[], None] = lambda: None


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
class Reply:
    """What one replica answered."""

    answer: EditAnswer
    error: Refusal | None = None


@dataclass(slots=True, eq=False)
class _Answers:
    """The answers to one edit so far. `first` has the facts of the first replica that made it."""

    first: Facts | None = None
    replies: dict[AskedEngine, Reply] = field(default_factory=dict)

    def note_reply(self, member: AskedEngine, task: asyncio.Task[Facts]) -> Reply:
        try:
            facts = task.result()
        except Refusal as error:
            is_gone = not member.is_alive or error.code == "ENGINE_UNAVAILABLE"
            reply = Reply(EditAnswer.GONE if is_gone else EditAnswer.REFUSED, error)
        except (Exception, asyncio.CancelledError) as error:
            log.exception("edit_failed", replica=member.replica.name, reason=type(error).__name__)
            reply = Reply(EditAnswer.GONE)
        else:
            if self.first is None:
                self.first = facts
            if are_same(self.first, facts):
                reply = Reply(EditAnswer.ACCEPTED)
            else:
                why = Refusal("SAE_INCOMPATIBLE", "its files hold another SAE")
                reply = Reply(EditAnswer.REFUSED, why)
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
    """Owner of what all replicas were told. `lock` is held by an edit, and by a replica that begins to serve.

    Args:
        check: raises the refusal of edits: the fleet has ended or is stalled.
    """

    def __init__(
        self, roster: Roster, check: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self.told = Told()
        self.lock = asyncio.Lock()
        self._roster = roster
        self._check = check
        self._clock = clock

    async def make(self, edit: Edit) -> Facts:
        """Make an edit on all replicas. Returns once every replica that serves has made it.

        An edit that has begun is carried to its end, also when its caller is cancelled.

        Raises:
            Refusal: no replica has made the edit, and nothing has changed.
        """
        await self._take_turn()
        return await carry_on(lambda: self._make(edit), self.lock.release)

    async def close(self) -> None:
        """Wait for the edit that is under way. The engines have ended, so it ends at once."""
        async with self.lock:
            pass

    async def join(self, replica: Replica) -> None:
        """Tell a replica what the others were told, and let it serve.

        Raises:
            Refusal: what its engine refuses.
        """
        await tell(replica.running, self.told)
        async with self.lock:
            await tell(replica.running, self.told)
            replica.epoch = self._roster.epoch
            replica.served_at = self._clock()
            replica.move(ReplicaState.SERVING)

    # ------------------------------------------------------------- one edit

    async def _make(self, edit: Edit) -> Facts:
        before = self.told
        state = edit.step(before.state)
        members = self._begin()
        answers = await self._ask(members, lambda engine: edit.send(engine, state))
        answers.settle()
        if not rules.is_accepted([reply.answer for reply in answers.replies.values()]):
            raise self._refuse(answers)
        self._leave_behind(answers)
        assert answers.first is not None
        self.told = before.after(state, answers.first)
        edit.on_made()
        return answers.first

    async def _take_turn(self) -> None:
        """Take the lock while a replica serves. The wait for one is without the lock, because a new replica needs it.

        Raises:
            Refusal: the fleet has ended or is stalled, or no replica finds a place.
        """
        while True:
            self._check()
            if not self._roster.serving:
                await self._roster.change_for_work()
                continue
            await self.lock.acquire()
            try:
                self._check()
                if self._roster.serving:
                    return
            except Refusal:
                self.lock.release()
                raise
            self.lock.release()

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

    async def _ask(
        self, members: Sequence[AskedEngine], send: Callable[[Engine], Awaitable[Facts]]
    ) -> _Answers:
        """Ask all replicas at once. Each may have requests again as soon as it has made the edit. After the first
        answer, the others have a bounded time."""
        answers, began = _Answers(), self._clock()
        tasks = {asyncio.create_task(_sent(send, member.engine)): member for member in members}
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
                if answers.note_reply(member, task).answer is EditAnswer.ACCEPTED:
                    member.acknowledge(self._roster.epoch)
                    self._roster.tell()
            if deadline is None and answers.first is not None:
                now = self._clock()
                deadline = now + rules.edit_patience(now - began)
        return answers

    def _leave_behind(self, answers: _Answers) -> None:
        """Replicas that did not make an edit that others made are lost."""
        what = "the engine did not make a change that other replicas made"
        for member, reply in answers.replies.items():
            if reply.answer is not EditAnswer.ACCEPTED:
                member.lose(f"{what}: {reply.error.message}" if reply.error is not None else what)

    def _refuse(self, answers: _Answers) -> Refusal:
        """No replica has made the edit: those that refused it serve on as before."""
        for member in answers.by(EditAnswer.GONE):
            member.lose(
                "the engine ended, or stood still, during a change of its steering or its SAEs"
            )
        for member in answers.by(EditAnswer.REFUSED):
            member.acknowledge(self._roster.epoch)
        self._roster.tell()
        return answers.refusal()


async def _sent(send: Callable[[Engine], Awaitable[Facts]], engine: Engine) -> Facts:
    return await send(engine)
