"""Captures: the values of sites of the model over many texts, read as parts of a job and written to files."""

from __future__ import annotations

import asyncio
import base64
import math
import os
import secrets
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.contexts import (
    READERS,
    AskedTexts,
    Cut,
    Place,
    Texts,
    TextSources,
    parts_of,
    token_reporter,
)
from steerserve.control.inference.planning import state_of
from steerserve.control.inference.texts import (
    TEXTS_AT_ONCE,
    NamedText,
    TextReader,
    of_pieces,
)
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, check_held
from steerserve.control.steering.interventions import EditParts, facts_of
from steerserve.control.threads import Threads
from steerserve.database.catalog import Clock, ModelRow
from steerserve.database.room import DocumentRoom
from steerserve.errors import Refusal
from steerserve.files import captures as files
from steerserve.files.captures import (
    Capture,
    CapturedValues,
    CaptureFolders,
    CaptureWriter,
    Rows,
    StoredSite,
)
from steerserve.files.client_paths import ClientPaths
from steerserve.hub.client import Hub
from steerserve.messages.carried import finish_edit
from steerserve.nouns.captures.form import (
    CaptureDetails,
    CapturedSite,
    CapturedTexts,
    CaptureFile,
    CaptureList,
    CaptureRecord,
    CaptureSource,
    CaptureState,
)
from steerserve.nouns.corpora.owner import Corpora
from steerserve.parts.activations_raw.form import (
    ACTIVATIONS_RAW,
    Dtype,
    RawChunk,
    RawReads,
    RawSite,
    RawValues,
    SiteAsked,
    place_sites,
)
from steerserve.rules.steering import ladder
from steerserve.rules.steering.placing import placed
from steerserve.rules.steering.positions import ALL, LAST_PROMPT, Positions, Selection
from steerserve.rules.steering.request import CapturedSource, RequestSteering
from steerserve.rules.steering.vector import check_written
from steerserve.rules.text import shown
from steerserve.rules.units import MIB
from steerserve.settings import Settings

KIND = "capture"
PART = 64
"""The most contexts between two records of how far a capture is."""
PART_BYTES = 32 * MIB
"""The most bytes of values that are in memory at once, unless one context has more."""
PIECE_BYTES = 2 * MIB
"""The most bytes of values in a message of the engine, unless one position has more."""
LAST = Positions(Selection(names=(LAST_PROMPT,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest(AskedTexts):
    """What is captured of which texts.

    Attributes:
        said: the source of the texts as the request names it; `source` and `texts` are those of the request, unless it
            names a corpus.
        sites, positions, steering: what `sent` means, which has these fields as they were sent.
    """

    name: str
    said: CaptureSource
    sites: tuple[SiteAsked, ...]
    positions: Positions
    steering: RequestSteering | None
    dtype: Dtype
    shard_mb: int
    sent: dict[str, object]

    def place_of(self, number: int) -> str:
        return "messages" if self.said.kind == "messages" else f"texts[{number}]"

    @property
    def lasting(self) -> dict[str, object]:
        """What must be the same when a capture is carried on, apart from its texts."""
        return {
            "source": msgspec.to_builtins(self.said),
            **self.sent,
            "max_tokens": self.max_tokens,
            "context": self.context,
            "shard_mb": self.shard_mb,
        }


@dataclass(frozen=True, slots=True)
class _Begun:
    """A capture on the resident model: what is read there, how it is steered, the attached SAEs that its edits use, and
    the digest of the steering, which is None where nothing is edited. `row` is the record of the model when the capture
    began: the resident model gets another record while it serves, once its files are read."""

    asked: CaptureRequest
    resident: Resident
    row: ModelRow
    reads: RawReads
    plan: m.Plan
    used: Sequence[Attachment]
    is_located: bool
    state: str | None


class Captures:
    """Owner of the captures and of the jobs that make them. It never loads a model."""

    def __init__(
        self,
        settings: Settings,
        reader: TextReader,
        hub: Hub,
        conductor: Conductor,
        jobs: Jobs,
        paths: ClientPaths,
        parts: EditParts,
        corpora: Corpora,
        now: Clock,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._conductor = conductor
        self._jobs = jobs
        self._parts = parts
        self._corpora = corpora
        self._now = now
        self._threads = Threads("captures", READERS)
        self._sources = TextSources(settings, hub, paths, self._threads)
        self._folders = CaptureFolders(settings.steerserve_home / "captures")
        self._room = DocumentRoom(self._folders.root, 0, 0, settings.disk_reserve_mb)
        self._reading: dict[str, Job] = {}
        self._stored: dict[str, int] = {}
        self._is_counted = False
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        """Read and write no more. The jobs have ended."""
        self._threads.close()

    # ------------------------------------------------------------- values

    async def values(self, source: CapturedSource, place: tuple[str, int]) -> CapturedValues:
        """The values of a site at a layer in the row of a source, or their means.

        Raises:
            Refusal: CAPTURE_NOT_FOUND; INVALID_PARAMETER, whose `param` is the field of the source that is wrong.
        """
        capture = await self._threads.run(self._folders.get, source.capture_id)
        places = [(one.site, one.layer) for one in capture.sites]
        if place not in places:
            name, layer = place
            has = ", ".join(one.tensor for one in capture.sites)
            raise _lacks(source.part, f"{capture.id} has no {name} of layer {layer}; it has {has}")
        number = places.index(place)
        site = capture.sites[number]
        if source.row is None:
            if capture.finished_at is None or site.mean is None:
                why = f"{capture.id} has no means, because "
                why += "it has no rows" if capture.finished_at else "it is not read to its end"
                raise _lacks(source.part, why)
            numbers = array("f", array("d", base64.b64decode(site.mean)))
        elif source.row >= capture.rows:
            raise _lacks("row", f"{capture.id} has {capture.rows} rows, counted from 0")
        else:
            numbers = await self._threads.run(self._folders.row, capture, number, source.row)
        return CapturedValues(numbers, site.heads)

    # ------------------------------------------------------------- records

    async def all(self) -> CaptureList:
        found = await self._threads.run(self._folders.all)
        stored = sum(one.stored_bytes for one in found)
        listed = [CaptureRecord(**self._facts(one)) for one in found]
        return CaptureList(listed, stored, self._settings.captures_max_mb)

    async def get(self, capture_id: str) -> CaptureDetails:
        """Raises:
        Refusal: CAPTURE_NOT_FOUND.
        """
        found = await self._threads.run(self._folders.get, capture_id)
        listed = await self._threads.run(self._folders.files, capture_id)
        return CaptureDetails(**self._facts(found), files=[CaptureFile(*one) for one in listed])

    async def file(self, capture_id: str, name: str) -> tuple[Path, os.stat_result]:
        """The path of a file of a capture, and its size and times.

        Raises:
            Refusal: CAPTURE_NOT_FOUND.
        """
        return await self._threads.run(self._folders.file, capture_id, name)

    async def remove(self, capture_id: str) -> str:
        """Delete a capture with its files. A job that reads it is cancelled first.

        Raises:
            Refusal: CAPTURE_NOT_FOUND.
        """
        await self._threads.run(self._folders.get, capture_id)
        job = self._reading.pop(capture_id, None)
        if job is not None and not job.over.is_set():
            await self._jobs.drop(job.id)
        await self._threads.run(self._folders.remove, capture_id)
        self._stored.pop(capture_id, None)
        return capture_id

    # ------------------------------------------------------------- reading

    async def start(self, asked: CaptureRequest) -> Job:
        """Begin to read texts, or carry on a capture that was cut. The job is refused what a scoring request is
        refused, with the place of the text; VALIDATION_ERROR for a line of a file; NON_FINITE for a value that the type
        cannot hold; CAPTURE_ALREADY_EXISTS where the capture to carry on has other texts; CAPTURES_FULL and
        INSUFFICIENT_DISK; and MODEL_NOT_LOADED or SAE_NOT_ATTACHED when the model or an SAE goes meanwhile.

        Raises:
            Refusal: VALIDATION_ERROR for the name; MODEL_NOT_LOADED; INVALID_PARAMETER for a GGUF model, a model that
                can only embed, a site, a layer, a head or a context that the model does not have, and for values of a
                context that take too much memory; the refusals of `rules/steering/placing.placed`; CORPUS_NOT_FOUND,
                VECTOR_NOT_FOUND, PROBE_NOT_FOUND; INVALID_LOCAL_PATH, PAYLOAD_TOO_LARGE, CAPTURE_ALREADY_EXISTS,
                CAPTURES_FULL, INSUFFICIENT_DISK, TOO_MANY_JOBS.
        """
        check_written(asked.name, "name")
        resident = self._conductor.loaded()
        check_layered(resident.row)
        _, facts = resident.running()
        asked.check_context(facts)
        await self._check_room(0)
        if asked.said.corpus_id is None:
            await self._sources.check_source(asked.source)
        else:
            await self._corpora.get(asked.said.corpus_id)
        begun = await self._begin(asked, resident)
        sites = await self._sites(begun)
        async with self._starting:
            capture = await self._recorded(begun, sites)
            writer = await self._threads.run(CaptureWriter, self._folders, capture)
            job = self._jobs.start(KIND, partial(self._run, begun, writer))
            self._reading[capture.id] = job
        return job

    # ------------------------------------------------------------- inside

    async def _begin(self, asked: CaptureRequest, resident: Resident) -> _Begun:
        """Raises:
        Refusal: as `start`.
        """
        row, attached = resident.row, list(resident.attachments.values())
        model = facts_of(resident, {})
        sites = place_sites(asked.sites, model, "sites")
        tensors: set[str] = set()
        for one in sites:
            tensor = f"{one.site}.{one.layer}"
            if tensor in tensors:
                raise _invalid(one.where, f"{one.site} of layer {one.layer} is there twice")
            tensors.add(tensor)
        reads = RawReads(
            sites,
            asked.positions,
            is_before=False,
            dtype=asked.dtype,
            is_listed=False,
            max_bytes=0,
            all_max_bytes=0,
            piece_bytes=PIECE_BYTES,
        )
        is_located = bool(asked.positions.roles)
        if asked.steering is None:
            return _Begun(asked, resident, row, reads, m.Suppressed(), [], is_located, None)
        own = await self._parts.with_vectors(asked.steering)
        own = await self._parts.with_sources(own, resident, KIND)
        model = facts_of(resident, await self._parts.largest(own, attached))
        values, edits = ladder.at(placed(own, attached, model), 1.0)
        keys = {*values, *(key for edit in edits for key in edit.keys)}
        plan = m.Overlay(
            None, {key: dict(one) for key, one in values.items()}, edits, own.modifiers
        )
        used = [one for one in attached if one.key in keys]
        is_located |= any(edit.positions.roles for edit in edits)
        state = state_of(resident, values, edits, modifiers=own.modifiers)
        return _Begun(asked, resident, row, reads, plan, used, is_located, state)

    async def _sites(self, begun: _Begun) -> list[StoredSite]:
        """The sites, as the engine has them. It reads one token, so that what the model does not have is refused before
        a text is read.

        Raises:
            Refusal: INVALID_PARAMETER for a site, a layer or a head that the model does not have, and for values of one
                context that take too much memory.
        """
        reads = structs.replace(begun.reads, positions=ALL, dtype="float32")
        request = m.Request(
            goal=m.ReadParts(),
            prompts=[m.Tokens([0])],
            client=KIND,
            parts=ACTIVATIONS_RAW.ask(reads),
        )
        take = of_pieces(ACTIVATIONS_RAW)()
        read = None
        async with (
            self._conductor.in_flight(begun.resident),
            aclosing(begun.resident.held().run(request)) as events,
        ):
            async for event in events:
                read = None if isinstance(event, m.Started) else take(event)
        assert read is not None
        sites = [
            _site(asked, one) for asked, one in zip(reads.sites, read.pieces[0].values, strict=True)
        ]
        self._check_memory(begun.asked, sites)
        return sites

    def _check_memory(self, asked: CaptureRequest, sites: Sequence[StoredSite]) -> None:
        """Raises:
        Refusal: INVALID_PARAMETER where the values of one context take too much memory.
        """
        most = self._settings.activations_raw_all_mb * MIB
        positions, numbers = _positions(asked), sum(one.width for one in sites)
        size = files.DTYPES[asked.dtype][1]
        if positions * numbers * size > most:
            why = (
                f"context: the values of one context have up to {positions} positions x {numbers} numbers x {size} "
                f"bytes = {positions * numbers * size} bytes; at most {most} (ACTIVATIONS_RAW_ALL_MB)"
            )
            details: dict[str, object] = {"positions": positions, "numbers": numbers}
            raise Refusal("INVALID_PARAMETER", why, param="context", max_bytes=most, **details)

    async def _recorded(self, begun: _Begun, sites: list[StoredSite]) -> Capture:
        """The record of a new capture, or of the one to carry on.

        Raises:
            Refusal: CAPTURE_ALREADY_EXISTS, INSUFFICIENT_DISK.
        """
        asked, row = begun.asked, begun.row
        every = await self._threads.run(self._folders.all)
        found = next((one for one in every if one.name == asked.name), None)
        if found is not None:
            self._check_same(found, begun)
            return found
        capture = Capture(
            id=f"capture_{secrets.token_hex(6)}",
            name=asked.name,
            created_at=self._now(),
            model=row.name,
            model_digest=row.content_digest,
            steering_state=begun.state,
            asked=asked.lasting,
            dtype=asked.dtype,
            sites=sites,
        )
        await self._threads.run(self._folders.add, capture)
        return capture

    def _check_same(self, found: Capture, begun: _Begun) -> None:
        """Check that a capture can be carried on by this request.

        Raises:
            Refusal: CAPTURE_ALREADY_EXISTS.
        """
        row, job = begun.row, self._reading.get(found.id)
        if found.finished_at is not None:
            raise _taken(found)
        if job is not None and not job.over.is_set():
            raise _taken(found, "a job reads this capture now", job_id=job.id)
        digests = (None, row.content_digest, *row.content_aliases)
        if found.model != row.name or found.model_digest not in digests:
            raise _taken(found, "it was begun with another model; load that one, or delete it")
        is_same = found.model_digest != row.content_digest or found.steering_state == begun.state
        if found.asked != begun.asked.lasting or not is_same:
            raise _taken(found, "it was begun with other fields; send these again, or delete it")

    async def _run(self, begun: _Begun, writer: CaptureWriter, report: Report) -> CapturedTexts:
        """Read the texts, and write what is read."""
        ended = Event()
        try:
            texts = await self._open(begun.asked, ended)
            report(0.0, "the texts are checked")
            digest = await self._sources.digest(texts())
            if writer.capture.texts_digest is None:
                await self._threads.run(writer.set_digest, digest)
            elif writer.capture.texts_digest != digest:
                why = "it was begun with other texts; send these again, or delete it"
                raise _taken(writer.capture, why)
            await self._capture(begun, writer, texts, report)
        finally:
            ended.set()
        last = writer.capture.rows % writer.capture.shard_rows
        await self._room.check_disk(last * writer.capture.row_bytes)
        await finish_edit(self._threads.run(writer.finish, self._now()), lambda: None)
        done = writer.capture
        return CapturedTexts(done.id, _texts(done), done.tokens, done.rows, done.stored_bytes)

    async def _open(self, asked: CaptureRequest, ended: Event) -> Texts:
        if asked.said.corpus_id is not None:
            return await self._corpora.texts(asked.said.corpus_id)
        return await self._sources.open(asked, ended)

    async def _capture(
        self, begun: _Begun, writer: CaptureWriter, texts: Texts, report: Report
    ) -> None:
        """Read what is left of the texts, and write each part."""
        asked, done = begun.asked, writer.capture
        size = _positions(asked) * done.row_bytes
        place = Place(done.next_text, done.next_token, done.tokens)
        if place.tokens >= asked.max_tokens:
            return
        cuts = self._sources.cuts(
            asked, place, begun.resident, texts(), is_located=begun.is_located
        )
        async with aclosing(cuts):
            async for part in parts_of(cuts, max(1, min(PART, PART_BYTES // size))):
                read = await self._reader.read(
                    [NamedText(cut.name, m.Tokens(cut.ids, spans=cut.spans)) for cut in part],
                    begun.resident,
                    m.Request(
                        goal=m.ReadParts(),
                        prompts=(),
                        plan=begun.plan,
                        client=KIND,
                        parts=ACTIVATIONS_RAW.ask(begun.reads),
                    ),
                    of_pieces(ACTIVATIONS_RAW),
                    check=lambda: check_held(begun.resident, begun.used),
                    told=token_reporter(report, asked, part, writer.capture.tokens),
                    is_gentle=True,
                    at_once=max(1, min(TEXTS_AT_ONCE, PART_BYTES // size)),
                )
                rows = [_rows(asked, cut, one.pieces) for cut, one in zip(part, read, strict=True)]
                await self._write(writer, rows, part[-1].after)

    async def _write(self, writer: CaptureWriter, rows: Sequence[Rows], after: Place) -> None:
        """Raises:
        Refusal: CAPTURES_FULL, INSUFFICIENT_DISK; CAPTURE_NOT_FOUND for one that was deleted meanwhile.
        """
        count = sum(len(one.positions) for one in rows)
        await self._check_room(count * writer.capture.row_bytes)
        progress = {"next_text": after.text, "next_token": after.token, "tokens": after.tokens}
        # whoever cancels the job waits for the end of this, so that nothing writes beside the next job
        await finish_edit(self._threads.run(writer.write, rows, **progress), lambda: None)
        self._stored[writer.capture.id] = writer.capture.stored_bytes

    async def _check_room(self, size: int) -> None:
        """Check that `size` bytes more leave the captures within their bound, and the reserve of the disk free.

        Raises:
            Refusal: CAPTURES_FULL, INSUFFICIENT_DISK.
        """
        most_mb = self._settings.captures_max_mb
        if most_mb == 0:
            why = "this service keeps no captures (CAPTURES_MAX_MB is 0)"
            raise Refusal("CAPTURES_FULL", why, limit_mb=0)
        if not self._is_counted:
            found = await self._threads.run(self._folders.all)
            self._stored.update({one.id: one.stored_bytes for one in found})
            self._is_counted = True
        if sum(self._stored.values()) + size > most_mb * MIB:
            raise Refusal(
                "CAPTURES_FULL",
                f"captures take at most {most_mb} MiB (CAPTURES_MAX_MB); delete some first",
                limit_mb=most_mb,
            )
        await self._threads.run(self._folders.make_root)
        await self._room.check_disk(size)

    def _facts(self, capture: Capture) -> dict[str, Any]:
        """The fields of the record of a capture."""
        job = self._reading.get(capture.id)
        is_done = capture.finished_at is not None
        is_read = not is_done and job is not None and not job.over.is_set()
        state: CaptureState = "done" if is_done else "reading" if is_read else "stopped"
        asked = capture.asked
        return {
            "id": capture.id,
            "name": capture.name,
            "state": state,
            "source": msgspec.convert(asked["source"], CaptureSource),
            "model": capture.model,
            "model_digest": capture.model_digest,
            "steering_state": capture.steering_state,
            "texts_digest": capture.texts_digest,
            "sites": msgspec.convert(capture.sites, list[CapturedSite], from_attributes=True),
            "positions": asked["positions"],
            "dtype": capture.dtype,
            "max_tokens": asked["max_tokens"],
            "context": asked["context"],
            "shard_mb": asked["shard_mb"],
            "texts": _texts(capture),
            "tokens": capture.tokens,
            "rows": capture.rows,
            "stored_bytes": capture.stored_bytes,
            "job_id": job.id if job is not None and is_read else None,
            "created_at": capture.created_at,
            "finished_at": capture.finished_at,
        }


def _positions(asked: CaptureRequest) -> int:
    """The most positions of one context that are read."""
    return 1 if asked.positions == LAST else asked.context


def _site(asked: RawSite, read: RawValues) -> StoredSite:
    assert asked.layer is not None
    return StoredSite(
        tensor=f"{asked.site}.{asked.layer}",
        site=asked.site,
        layer=asked.layer,
        heads=None if asked.heads is None else list(asked.heads),
        width=math.prod(read.shape),
        module_path=read.path,
    )


def _rows(asked: CaptureRequest, cut: Cut, pieces: Sequence[RawChunk]) -> Rows:
    positions = [at for piece in pieces for at in piece.positions]
    return Rows(
        cut.text,
        cut.start // (asked.context - cut.skip),
        positions,
        [cut.ids[at] for at in positions],
        [[piece.values[site].data for piece in pieces] for site in range(len(pieces[0].values))],
        [(one.values, one.lengths) for one in pieces[-1].sums],
    )


def _texts(capture: Capture) -> int:
    """The texts that were read, with the one that was begun last."""
    return capture.next_text + bool(capture.next_token)


def _invalid(where: str, why: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", f"{where}: {why}", param=where)


def _taken(capture: Capture, why: str = "a capture has this name", **details: object) -> Refusal:
    return Refusal(
        "CAPTURE_ALREADY_EXISTS",
        f"{shown(capture.name)}: {why}",
        param="name",
        capture_id=capture.id,
        **details,
    )


def _lacks(field: str, why: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", why, param=field)
