"""The commands of the control plane that wait for the answers of the engine. While the engine is stalled, every one of
them is refused at once, except the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.engine import Report


class Asks:
    """Owner of the commands that wait.

    A command whose caller gives up, or is refused because the engine is stalled, is taken back: an engine that has not
    read it yet never carries it out. `deliver_event` tells where an engine took a new state all the same.

    Args:
        write: sends a command, without waiting.
    """

    def __init__(self, write: Callable[[m.Command], None]) -> None:
        self._write = write
        self._answers: dict[int, asyncio.Future[m.Event]] = {}
        self._reports: dict[int, Report] = {}
        self._taken_back: set[int] = set()
        self._lasting: set[int] = set()

    async def ask(self, command: m.Command, report: Report | None = None) -> m.Event:
        """Send a command and return the answer.

        Raises:
            Refusal: the refusal of the engine.
        """
        number = command.id
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        if report:
            self._reports[number] = report
        if isinstance(command, m.Load):
            self._lasting.add(number)
        self._write(command)
        event: m.Event | None = None
        try:
            event = await answer
        finally:
            self._answers.pop(number, None)
            self._reports.pop(number, None)
            self._lasting.discard(number)
            if event is None:
                self._take_back(command)
        if isinstance(event, m.Refused):
            raise refusal(event)
        return event

    def deliver_event(self, event: m.Event) -> bool:
        """Give an event to its command. Returns False where the event says that the engine took a new state although
        the command was taken back."""
        if isinstance(event, m.Stepped):
            return True
        if isinstance(event, m.Progress):
            if event.id in self._reports:
                self._reports[event.id](event)
            return True
        if event.id in self._taken_back:
            self._taken_back.discard(event.id)
            return isinstance(event, m.Refused)
        answer = self._answers.get(event.id)
        if answer is not None and not answer.done():
            answer.set_result(event)
        return True

    def stall(self, why: Refusal) -> None:
        """Refuse every command that waits, except the load."""
        for number, answer in self._answers.items():
            if number not in self._lasting and not answer.done():
                answer.set_exception(why)

    def end(self, gone: Refusal) -> None:
        """Refuse every command that waits, because the engine has ended."""
        self._taken_back.clear()
        for number, answer in self._answers.items():
            if not answer.done():
                answer.set_result(refused(number, gone))

    def _take_back(self, command: m.Command) -> None:
        if isinstance(command, m.Apply):
            self._taken_back.add(command.id)
        self._write(m.Cancel(command.id))


def refused(number: int, why: Refusal) -> m.Refused:
    return m.Refused(number, why.code, why.message, None, why.details)


def refusal(event: m.Refused) -> Refusal:
    return Refusal(event.code, event.message, param=event.param, **event.details)
