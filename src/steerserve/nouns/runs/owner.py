"""Owner of the recorded answers: takes what an answer was made from, writes it beside the requests, and makes recorded
answers again.

The writing never delays an answer. What cannot be written is counted, and shown by health until a write succeeds.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import msgspec
import structlog
from msgspec import structs

from steerserve import __version__
from steerserve import messages as m
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.generate import Run as Answering
from steerserve.control.inference.planning import Admitted, described, state_of
from steerserve.control.metrics import CURRENT
from steerserve.control.models.served import ServedModel
from steerserve.database.catalog import Clock, utc_now
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.nouns.runs import rules
from steerserve.nouns.runs.form import ImportedRuns, RunList
from steerserve.nouns.runs.rules import (
    Replayed,
    Run,
    RunChoice,
    RunMachine,
    RunModel,
    RunScore,
    RunSettings,
    RunSteering,
    ShownRun,
)
from steerserve.nouns.runs.store import NewRun, RunStore
from steerserve.rules import field_faults, json_faults, json_reading, json_size
from steerserve.rules.bounds import IMPORT_LINES, RUN_VALUES
from steerserve.rules.field_faults import refuse_field
from steerserve.rules.inference import names
from steerserve.rules.steering import digest, documents
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers, Values
from steerserve.settings import Settings

log = structlog.get_logger(__name__)
WAITING_BYTES = 64 << 20
"""The most bytes of records that wait to be written; further ones are lost."""
AT_ONCE = 50
"""The most records of one transaction."""
READ_SECONDS = 5.0
"""The most seconds that a read waits for records that are not written yet."""
CLOSE_SECONDS = 5.0
"""Seconds that the end of the service waits for records that are not written yet."""
SEEDS = 1 << 32

Outcomes = AsyncIterator[m.Started | m.Outcome]


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as it was sent: its route, and the fields of its body that the service reads. `may_keep` says whether
    its answer may be recorded."""

    route: str
    body: Mapping[str, object]
    may_keep: bool = True


ReadAgain = Callable[[str, Mapping[str, object], str], Awaitable[tuple[Asked, ServedModel]]]
"""(route, body, client) -> the request that the body asks for, and its model."""


class Runs:
    """Records answers and makes them again.

    Args:
        cards: the names of the cards of this machine.
    """

    def __init__(
        self,
        settings: Settings,
        store: RunStore,
        generation: Generation,
        cards: Callable[[], Sequence[str]],
        now: Clock = utc_now,
    ) -> None:
        self._settings = settings
        self._store = store
        self._generation = generation
        self._cards = cards
        self._now = now
        self._versions = {"steerserve": __version__} | {
            name: found for name in ("torch", "transformers") if (found := _version(name))
        }
        self._line: deque[NewRun] = deque()
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._read_again: ReadAgain | None = None
        self.lost = 0
        """The answers since the last write that were not recorded."""
        self.fault: str | None = None
        """Why the last record was not written; None if it was."""

    def read_requests_by(self, read_again: ReadAgain) -> None:
        """Name who reads the recorded requests again, which are bodies of `/v1`."""
        self._read_again = read_again

    # ------------------------------------------------------------- recording

    def prepared(self, asked: Asked, model: ServedModel, sent: SentRequest) -> Asked:
        """The request with a seed, where its answer is recorded and it has none. Continuous batching serves requests
        without a seed, and GGUF models take none."""
        goal = asked.goal
        if not self._keeps(sent) or not isinstance(goal, m.Generate):
            return asked
        is_seedless = self._settings.enable_continuous_batching or model.engine != names.CHECKPOINT
        if is_seedless or asked.seed is not None:
            return asked
        sampling = structs.replace(goal.sampling, seed=secrets.randbelow(SEEDS))
        return asked.with_goal(sampling=sampling)

    def watched(
        self,
        sent: SentRequest,
        asked: Asked,
        answering: Answering,
        started: m.Started,
        events: Outcomes,
    ) -> Outcomes:
        """The events of an answer, which is recorded once all of them were read."""
        if not self._keeps(sent) or asked.steering is None:
            return events
        serving = CURRENT.get()
        x_request_id = serving.request_id if serving is not None else None
        recording = _Recording(sent, asked, answering, started, x_request_id)
        return self._watched(recording, events)

    async def _watched(self, recording: _Recording, events: Outcomes) -> Outcomes:
        async for event in events:
            recording.take_event(event)
            yield event
        try:
            self._take(self._made(recording))
        except Exception:
            # a fault of the record is none of the answer
            self._lose(1, "an error inside the service")
            log.exception("run_not_recorded")

    def _keeps(self, sent: SentRequest) -> bool:
        return self._settings.record_runs and sent.may_keep

    def _made(self, recording: _Recording) -> Run:
        sent, asked, answering = recording.sent, recording.asked, recording.answering
        admitted = answering.admitted
        resident, facts = admitted.resident, admitted.resident.facts
        row = resident.row
        own_seed = sent.body.get("seed")
        return Run(
            request_id=asked.answer_id,
            created_at=self._now(),
            route=rules.ROUTES[sent.route],
            body=dict(sent.body),
            seed=asked.seed,
            seed_chosen=asked.seed is not None and own_seed is None,
            model=RunModel(
                name=answering.model_name,
                repository_id=row.repo_id,
                revision=row.revision,
                content_digest=row.content_digest,
                quantization=row.quantization,
                dtype=facts.dtype if facts else None,
                engine=row.engine,
            ),
            saes=[described(one) for one in resident.attachments.values()],
            steering=_steering(admitted, is_changed=recording.is_changed),
            versions=self._versions,
            machine=self._machine(facts),
            settings=RunSettings(
                default_max_tokens=self._settings.default_max_tokens,
                continuous_batching=self._settings.enable_continuous_batching,
            ),
            prompt_tokens=list(recording.started.prompt_tokens),
            choices=recording.choices(),
            x_request_id=recording.x_request_id,
        )

    def _machine(self, facts: m.Loaded | None) -> RunMachine:
        device = facts.device.partition(":")[0] if facts else ""
        cards = ", ".join(sorted(set(self._cards()))) if device == "cuda" else ""
        seeded = facts.seeded_rows if facts else None
        return RunMachine(
            device=device,
            processor=cards or platform.machine(),
            probe=facts.probe if facts else "",
            shares_passes=seeded is not None and seeded.are_shared,
        )

    def _take(self, run: Run) -> None:
        text = msgspec.json.encode(run).decode()
        if len(text) > rules.BYTES_MAXIMUM:
            self._lose(1, f"an answer of {len(text)} bytes is too large to be recorded")
        elif self._waiting_bytes + len(text) > WAITING_BYTES:
            self._lose(1, self.fault or "the database is slower than the answers")
        else:
            self._line.append(NewRun(rules.summary(run), text, run.x_request_id))
            self._waiting_bytes += len(text)
            if self._writing is None or self._writing.done():
                self._writing = background.start(self._write(), name="run-recorder")

    async def _write(self) -> None:
        while self._line:
            part = [self._line.popleft() for _ in range(min(AT_ONCE, len(self._line)))]
            try:
                await self._store.add(part)
            except Refusal as refusal:
                self._lose(len(part), refusal.message)
            except Exception:
                # the records after these are still written
                self._lose(len(part), "an error inside the service")
                log.exception("runs_not_recorded")
            else:
                self.lost, self.fault = 0, None
            self._waiting_bytes -= sum(len(one.text) for one in part)

    def _lose(self, count: int, reason: str) -> None:
        if self.fault != reason:
            log.warning("runs_not_recorded", reason=reason)
        self.lost += count
        self.fault = reason

    async def settled(self) -> None:
        """Wait until the records that were taken before are written or lost, at most READ_SECONDS."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=READ_SECONDS)

    async def close(self) -> None:
        """Write what waits, for a few seconds."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_SECONDS)
            self._writing.cancel()

    # ------------------------------------------------------------- the records

    async def newest(self, limit: int) -> RunList:
        """The newest records first.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        await self.settled()
        found, count, size = await self._store.newest(limit)
        return RunList(
            runs=found, total=count, stored_bytes=size, recording=self._settings.record_runs
        )

    async def get(self, request_id: str) -> ShownRun:
        """The recorded answer with this id, or else the newest one of a request with this X-Request-Id.

        Raises:
            Refusal: RUN_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        await self.settled()
        found = await self._store.get(request_id)
        if found is None:
            raise _unknown(request_id)
        run = await asyncio.to_thread(_read, found.text.encode())
        return ShownRun(**structs.asdict(run), also=list(found.also))

    async def remove(self, request_id: str) -> str:
        """Delete one record, and return its id.

        Raises:
            Refusal: RUN_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        await self.settled()
        if not await self._store.remove(request_id):
            raise _unknown(request_id)
        return request_id

    async def lines(self) -> AsyncIterator[bytes]:
        """Every record as a line of JSON, the oldest first. The first is read at once.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        await self.settled()
        texts = self._store.all()
        first = await anext(texts, None)

        async def lines() -> AsyncIterator[bytes]:
            if first is not None:
                yield first.encode() + b"\n"
            async for text in texts:
                yield text.encode() + b"\n"

        return lines()

    async def add(self, body: bytes, *, is_lines: bool) -> ImportedRuns:
        """Store the records of an import: all of them or none. A record whose id is known is left as it is.

        Raises:
            Refusal: PAYLOAD_TOO_LARGE; VALIDATION_ERROR with the place of the first wrong record; INSUFFICIENT_DISK,
                DATABASE_UNAVAILABLE.
        """
        new = await asyncio.to_thread(_parsed, body, is_lines=is_lines)
        count = await self._store.add(new)
        return ImportedRuns(imported=count, known=len(new) - count)

    # ------------------------------------------------------------- replay

    async def replay(self, request_id: str, client: str) -> Replayed:
        """Make a recorded answer again on the resident model, with the steering that it had, and compare the two. The
        live steering stays as it is. No model is loaded.

        Raises:
            Refusal: RUN_NOT_FOUND, RUN_NOT_REPLAYABLE, SAE_NOT_ATTACHED, and every refusal of an inference request.
        """
        run = await self.get(request_id)
        rules.check_replayable(run)
        route = next(name for name, path in rules.ROUTES.items() if path == run.route)
        assert self._read_again is not None
        asked, model = await self._read_again(route, rules.replayed_body(run), client)
        steering = replace(asked.steering or AskedSteering(), replayed=run)
        asked = replace(asked, answer_id="", may_load=False, is_stream=False, steering=steering)
        asked = asked.with_goal(is_stream=False) if asked.goal.writes else asked
        async with self._generation.open(asked, model) as answering:
            events = aiter(answering.events)
            started = await anext(events)
            assert isinstance(started, m.Started)
            recording = _Recording(SentRequest(route, run.body), asked, answering, started)
            async for event in events:
                recording.take_event(event)
            now = self._made(recording)
            known_as = run.model.content_digest
            if known_as in answering.admitted.resident.row.content_aliases:
                now = _with_content(now, answering.admitted, known_as)
        found = rules.first_difference(run.choices, now.choices)
        return Replayed(
            request_id=run.request_id,
            equal=found is None,
            reasons=rules.reasons(run, now),
            first_difference=msgspec.UNSET if found is None else found,
        )


class _Recording:
    """An answer and what it is made from, with its choices as far as the engine has made them."""

    def __init__(
        self,
        sent: SentRequest,
        asked: Asked,
        answering: Answering,
        started: m.Started,
        x_request_id: str | None = None,
    ) -> None:
        self.sent = sent
        self.asked = asked
        self.answering = answering
        self.started = started
        self.x_request_id = x_request_id
        self._texts: list[list[str]] = [[] for _ in range(asked.choices)]
        self._ends: list[tuple[str | None, int]] = [(None, 0)] * asked.choices
        self._scores: list[list[RunScore] | None] = [None] * asked.choices
        self.is_changed = False

    def take_event(self, event: m.Started | m.Outcome) -> None:
        if isinstance(event, m.Piece):
            self._texts[event.choice].append(event.text)
            self._ends[event.choice] = event.finish, event.tokens
            self.is_changed = self.is_changed or event.is_changed
        elif isinstance(event, m.Scored):
            told: list[m.PromptToken | m.TokenScore] = [*event.prompt, event.best, *event.top]
            self._scores[event.choice] = [RunScore(one.token, one.logprob) for one in told]
            self._texts[event.choice] = [event.best.text]
            self._ends[event.choice] = "length", 1

    def choices(self) -> list[RunChoice]:
        return [
            RunChoice(text="".join(text), finish_reason=finish, tokens=tokens, scores=scores)
            for text, (finish, tokens), scores in zip(
                self._texts, self._ends, self._scores, strict=True
            )
        ]


def _with_content(run: Run, admitted: Admitted, content: str | None) -> Run:
    """The record, told with an earlier digest of the content of its model."""
    steering = run.steering
    if steering.state is not None:
        _, edits, modifiers = _planned(admitted)
        state = state_of(
            admitted.resident, steering.values, edits, modifiers=modifiers, content=content
        )
        steering = structs.replace(steering, state=state)
    model = structs.replace(run.model, content_digest=content)
    return structs.replace(run, model=model, steering=steering)


def _planned(
    admitted: Admitted,
) -> tuple[Mapping[str, Values] | None, tuple[Edit, ...], Modifiers]:
    """The overlay of values, the edits, and what holds for both, as they were planned."""
    plan, live = admitted.plan, admitted.live
    if admitted.state is None:
        return {}, (), NO_MODIFIERS
    if isinstance(plan, m.Overlay):
        return plan.values, plan.edits, plan.modifiers
    return None, live.edits, live.modifiers


def _steering(admitted: Admitted, *, is_changed: bool) -> RunSteering:
    """What was added and edited, as it was planned."""
    overlay, edits, modifiers = _planned(admitted)
    added = digest.applied(admitted.live, overlay, admitted.resident.attachments)
    return RunSteering(
        state=admitted.state,
        sources=list(admitted.account.sources),
        values={key: dict(values) for key, values in added.items()},
        edits=rules.encoded_edits(edits),
        **structs.asdict(modifiers),
        changed=is_changed,
    )


def _parsed(body: bytes, *, is_lines: bool) -> list[NewRun]:
    """The records of an import, which are lines of JSON, or a JSON object with a list of them."""
    if is_lines:
        if body.count(b"\n") > IMPORT_LINES:
            raise _too_large(f"the body has more than {IMPORT_LINES} lines")
        lines = [line for line in body.split(b"\n") if line.strip()]
        places = [f"line {number}" for number in range(1, len(lines) + 1)]
    else:
        if json_size.has_more_values(body, RUN_VALUES):
            raise _too_large(
                f"the body has more than {RUN_VALUES} values; send the records as lines, as they are exported"
            )
        documents.check_once(body)
        try:
            lines = list(msgspec.json.decode(body, type=_RunsBody).runs)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _wrong("runs", _fault(body, error)) from None
        places = [f"runs[{number}]" for number in range(len(lines))]
    if not lines:
        raise _wrong("runs", "no record")
    made = []
    for place, line in zip(places, lines, strict=True):
        if json_size.has_more_values(bytes(line), RUN_VALUES):
            raise _too_large(f"{place}: has more than {RUN_VALUES} values")
        try:
            documents.check_once(bytes(line))
        except Refusal as twice:
            raise _wrong(place, twice.message) from None
        try:
            run = _read(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _wrong(place, _fault(bytes(line), error)) from None
        rules.check_imported(run, place)
        text = msgspec.json.encode(run).decode()
        if len(text) > rules.BYTES_MAXIMUM:
            raise _wrong(place, f"larger than {rules.BYTES_MAXIMUM} bytes")
        made.append(NewRun(rules.summary(run), text, run.x_request_id))
    return made


def _read(text: bytes | msgspec.Raw) -> Run:
    return msgspec.convert(json_reading.decode(text), Run, str_keys=True)


def _too_large(why: str) -> Refusal:
    return Refusal("PAYLOAD_TOO_LARGE", why)


def _fault(text: bytes, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return field_faults.spoken(str(error))
    return f"is not valid JSON: {json_faults.fault_of(text)}"


class _RunsBody(msgspec.Struct):
    runs: list[msgspec.Raw]


def _unknown(request_id: str) -> Refusal:
    why = f"no answer of the id {request_id!r} is recorded"
    return Refusal("RUN_NOT_FOUND", why, request_id=request_id)


def _wrong(place: str, why: str) -> Refusal:
    return refuse_field(place, why, param=place)


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
