"""One batch, from its check to the answer of its last line. Everything that is done is in the database, so that a batch
goes on after a restart of the service."""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any, Protocol

import msgspec
import structlog

from steerserve.control.inference.batch_models import BatchModels
from steerserve.control.inference.queue import Queue
from steerserve.control.models.served import ServedModel
from steerserve.database.batches import AT_ONCE, BatchRow, BatchStore, LineAnswer
from steerserve.database.files import FileStore
from steerserve.errors import Refusal
from steerserve.rules.inference import batches as rules
from steerserve.rules.inference import fields, names
from steerserve.rules.inference.batches import BatchLine, BatchStatus, InputCheck
from steerserve.settings import Settings

log = structlog.get_logger(__name__)
WORKERS_MAXIMUM = 64
"""The most lines of a batch that run or wait for a slot at once."""
_encoded = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answered:
    """What a line was answered, as a request is. `refusal` is the refusal that the body tells. `ignored` are the
    locations of the fields that were not used."""

    status: int
    body: bytes
    refusal: Refusal | None = None
    ignored: tuple[str, ...] = ()


class LineRunner(Protocol):
    """Runs a line as a request of its own."""

    async def model(self, name: str) -> tuple[ServedModel, str | None]:
        """The model that a name means, and the profile that the name carries.

        Raises:
            Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME, MODEL_LOAD_FAILED.
        """

    async def answer(
        self, endpoint: str, body: bytes, client: str, is_strict: bool | None
    ) -> Answered:
        """Run a line."""


@dataclass(frozen=True, slots=True)
class BatchParts:
    """What a batch needs of the service."""

    settings: Settings
    store: BatchStore
    files: FileStore
    models: BatchModels
    queue: Queue
    runner: LineRunner


class BatchRun:
    """Checks the input of a batch, and answers its lines."""

    def __init__(self, row: BatchRow, parts: BatchParts) -> None:
        self.row = row
        self._parts = parts

    async def check_input(self) -> None:
        """Check the whole input. The batch is in progress then, or has failed with every fault of its input."""
        row, settings, store = self.row, self._parts.settings, self._parts.store
        check = InputCheck(
            row.endpoint, settings.batch_max_lines, settings.max_body_bytes, row.is_strict
        )
        async for lines in self._input(check.line_bytes + 1):
            await asyncio.to_thread(check.check_lines, lines)
        served = await self._model(check)
        faults = check.faults()
        if faults or served is None:
            self.row = await store.change(row, BatchStatus.FAILED, errors=faults)
            return
        self.row = await store.change(
            row,
            BatchStatus.IN_PROGRESS,
            total=check.lines,
            model=served.name,
            model_id=served.row.id,
            is_steered=check.is_steered,
        )

    async def answer(self) -> None:
        """Answer every line that is not answered yet, and return once all answers are kept.

        Lines run together. Where the engine ends, the lines that ran then run again one after the other, so that a line
        that ends the engine each time fails alone.
        """
        pending = _Pending(self._input(), await self._parts.store.answered(self.row.id))
        while not pending.is_over:
            await self._work_together(pending)
            while pending.lost:
                line = pending.lost.popleft()
                for tries in range(1, rules.TRIES + 1):
                    made = await self._made(line, is_last=tries == rules.TRIES)
                    if made is not None:
                        await self._keep([made])
                        break

    async def expire(self) -> None:
        """Answer every line that is not answered yet with an error that says so."""
        done = await self._parts.store.answered(self.row.id)
        why = "the completion window of the batch has ended"
        error = {"code": "batch_expired", "message": why}
        missed: list[LineAnswer] = []
        if not self.row.total:  # the window ended before the check
            return
        async for part in self._input():
            for number, text in part:
                if number not in done:
                    line = rules.read_line(number, text)
                    missed.append(LineAnswer(number, True, _written(line, None, error)))
                if len(missed) == AT_ONCE:
                    await self._parts.store.keep(self.row.id, missed)
                    missed = []
        if missed:
            await self._parts.store.keep(self.row.id, missed)

    # ------------------------------------------------------------- inside

    async def _input(self, most: int | None = None) -> AsyncIterator[list[tuple[int, bytes]]]:
        """The lines of the input that are not blank, with their places, many at a time. A line is cut after `most`
        bytes."""
        rest, number, is_first = b"", 0, True
        async for part in self._parts.files.parts(self.row.input_file_id):
            if is_first:
                part, is_first = part.removeprefix(codecs.BOM_UTF8), False
            lines, count, rest = await asyncio.to_thread(_split, rest + part, number)
            rest = rest[:most]
            yield lines
            number += count
        if rest.strip():
            yield [(number, rest)]

    async def _model(self, check: InputCheck) -> ServedModel | None:
        """The one model of all lines; the check notes where there is none."""
        first: ServedModel | None = None
        route = names.EMBEDDINGS if self.row.endpoint == "/v1/embeddings" else names.CHAT
        for name, line in check.models.items():
            try:
                model, profile = await self._parts.runner.model(name)
                fields.check_named_profile(profile, route, model.engine)
            except Refusal as refusal:
                check.fault(refusal.row.v1_code, refusal.message, line, "body.model")
                continue
            check.is_steered |= profile is not None
            first = first or model
            if model.row.id != first.row.id:
                why = f"all lines of a batch are for one model, and the first is for {first.name!r}"
                check.fault("mismatched_model", why, line, "body.model")
        return first

    async def _work_together(self, pending: _Pending) -> None:
        """Answer lines until there is none, or until lines have to run alone.

        Raises:
            Refusal: the database cannot be read. What is answered is kept.
        """
        workers = min(self._parts.queue.counts().max_concurrent, WORKERS_MAXIMUM)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(pending))
        except ExceptionGroup as raised:
            faults = raised.exceptions
            errors = [fault for fault in faults if not isinstance(fault, Refusal)]
            raise (errors or faults)[0] from None

    async def _work(self, pending: _Pending) -> None:
        while (line := await pending.next()) is not None:
            made = await self._made(line)
            if made is None:
                pending.lost.append(line)
            else:
                await self._keep([made])

    async def _made(self, line: BatchLine, *, is_last: bool = False) -> LineAnswer | None:
        """The answer to a line, once its model serves; None where the line has to run again alone. With `is_last` the
        line runs for the last time."""
        parts, row = self._parts, self.row
        assert row.model_id is not None
        while True:
            await parts.models.until_ready(row.model_id, self.row.attached or ())
            await self._note_attached()
            before = parts.models.attachments(self.row.attached or ())
            answered = await parts.runner.answer(row.endpoint, line.body, row.client, row.is_strict)
            after = parts.models.attachments(self.row.attached or ())
            if before is None or after is None or any(map(is_not, before, after)):
                continue  # an SAE was away for a moment, so the line may have run without it
            refusal = answered.refusal
            if refusal is None:
                return _answer(line, answered)
            if rules.is_passing(refusal):
                await parts.models.pause()
            elif is_last or not rules.is_perhaps_of_line(refusal):
                return _answer(line, answered)
            else:
                return None

    async def _note_attached(self) -> None:
        """Remember what is attached when the first line runs."""
        if self.row.attached is not None or not self.row.is_steered:
            return
        attached = self._parts.models.attached()
        self.row = replace(self.row, attached=attached)
        self.row = await self._parts.store.change(
            self.row, BatchStatus.IN_PROGRESS, attached=attached
        )

    async def _keep(self, lines: list[LineAnswer]) -> None:
        """Store answers. Where the database or the room does not allow it now, wait until it does."""
        has_waited = False
        while True:
            try:
                await self._parts.store.keep(self.row.id, lines)
            except Refusal as refusal:
                if not has_waited:
                    why = refusal.message
                    log.warning("batch_waits", batch_id=self.row.id, code=refusal.code, reason=why)
                has_waited = True
                await self._parts.models.pause()
            else:
                return


class _Pending:
    """The lines that are not answered. `lost` are those that have to run again alone."""

    def __init__(self, lines: AsyncIterator[list[tuple[int, bytes]]], done: set[int]) -> None:
        self._lines = lines
        self._done = done
        self._part: deque[tuple[int, bytes]] = deque()
        self._reading = asyncio.Lock()
        self.lost: deque[BatchLine] = deque()
        self.is_over = False

    async def next(self) -> BatchLine | None:
        """The next line; None where there is none, and while lines have to run alone."""
        async with self._reading:
            while not self._part and not self.is_over and not self.lost:
                part = await anext(self._lines, None)
                self.is_over = part is None
                self._part.extend(one for one in part or () if one[0] not in self._done)
            if self.lost or not self._part:
                return None
            return rules.read_line(*self._part.popleft())


def _split(text: bytes, first: int) -> tuple[list[tuple[int, bytes]], int, bytes]:
    """The whole lines of a text that are not blank, with their places from `first` on; the number of all its whole
    lines; the beginning of the next line."""
    *lines, rest = text.split(b"\n")
    return [(first + i, line) for i, line in enumerate(lines) if line.strip()], len(lines), rest


def _answer(line: BatchLine, answered: Answered) -> LineAnswer:
    response = {
        "status_code": answered.status,
        "request_id": f"req_{secrets.token_hex(12)}",
        "body": msgspec.Raw(answered.body),
    }
    is_failed = answered.status >= 400
    read, written = (0, 0) if is_failed else _tokens(answered.body)
    ours = {"ignored_fields": answered.ignored} if answered.ignored else None
    text = _written(line, response, None, ours)
    return LineAnswer(line.number, is_failed, text, read, written)


def _written(
    line: BatchLine, response: object, error: object, ours: Mapping[str, object] | None = None
) -> bytes:
    """A line of a file of a batch. `ours` is what the protocol has no place for."""
    told = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return _encoded(told if ours is None else {**told, "service": ours})


class _Body(msgspec.Struct):
    usage: dict[str, Any]


_usage = msgspec.json.Decoder(_Body).decode


def _tokens(body: bytes) -> tuple[int, int]:
    """The tokens that were read and written, by the usage of an answer of any endpoint."""
    usage = _usage(body).usage
    read = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    return read, usage.get("completion_tokens", usage.get("output_tokens", 0))
