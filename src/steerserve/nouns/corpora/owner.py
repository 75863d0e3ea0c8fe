"""Corpora: many texts, read once as parts of a job, for what every feature of the attached SAEs does over them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Event

import msgspec

from steerserve import messages as m
from steerserve.control.inference.contexts import (
    READERS,
    AskedTexts,
    Place,
    Texts,
    TextSources,
    parts_of,
    token_reporter,
)
from steerserve.control.inference.texts import NamedText, TextReader, of_kind
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import (
    Attachment,
    Resident,
    check_held,
    content_key,
    content_keys,
)
from steerserve.control.sensing.corpus_results import (
    PART,
    Context,
    CorpusResults,
    StoredCorpus,
    StoredSae,
    corpus_of,
    packed,
    unpacked,
)
from steerserve.control.threads import Threads
from steerserve.errors import Refusal
from steerserve.files.client_paths import ClientPaths
from steerserve.hub.client import Hub
from steerserve.nouns.corpora.form import (
    CorpusList,
    CorpusRecord,
    CorpusSae,
    CorpusSource,
    CorpusState,
)
from steerserve.nouns.corpora.job import Summary
from steerserve.nouns.corpora.store import (
    CorpusRow,
    CorpusStore,
    Progress,
    ReadSae,
    taken,
)
from steerserve.rules.inference.corpus_texts import CorpusText
from steerserve.rules.steering.vector import check_written
from steerserve.rules.text_offsets import BROKEN
from steerserve.settings import Settings

KIND = "corpus"
COMING = "+"
"""Behind the id and the name of a corpus while its results are stored, beside those that they will replace."""
READ_SHARE = 0.9
"""The share of the progress of a job that is the reading of the texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRequest(AskedTexts):
    """What a corpus is read of, and how."""

    name: str
    examples: int

    @property
    def lasting(self) -> dict[str, object]:
        """What must be the same when a corpus is carried on, apart from its texts."""
        said = {"max_tokens": self.max_tokens, "context": self.context, "examples": self.examples}
        return {"source": msgspec.to_builtins(self.source), **said}


@dataclass(frozen=True, slots=True)
class _Begun:
    """A corpus that is read on the resident model, and the attachments of its SAEs."""

    asked: CorpusRequest
    row: CorpusRow
    resident: Resident
    saes: Sequence[Attachment]


class Corpora:
    """Owner of the jobs that read corpora. It never loads a model."""

    def __init__(
        self,
        settings: Settings,
        store: CorpusStore,
        results: CorpusResults,
        reader: TextReader,
        hub: Hub,
        conductor: Conductor,
        jobs: Jobs,
        paths: ClientPaths,
    ) -> None:
        self._store = store
        self._results = results
        self._reader = reader
        self._conductor = conductor
        self._jobs = jobs
        self._reading: dict[str, Job] = {}
        self._starting = asyncio.Lock()
        self._threads = Threads("corpora", READERS)
        self._sources = TextSources(settings, hub, paths, self._threads)

    async def close(self) -> None:
        """Read no more texts. The jobs have ended."""
        self._threads.close()

    # ------------------------------------------------------------- records

    async def all(self) -> CorpusList:
        rows = await self._store.all()
        listed = [await self._record(row) for row in rows]
        return CorpusList(listed, sum(row.stored_bytes for row in rows), self._store.most_mb)

    async def get(self, corpus_id: str) -> CorpusRecord:
        """Raises:
        Refusal: CORPUS_NOT_FOUND.
        """
        return await self._record(await self._store.get(corpus_id))

    async def texts(self, corpus_id: str) -> Texts:
        """The texts of a corpus, as far as they were read.

        Raises:
            Refusal: CORPUS_NOT_FOUND.
        """
        row = await self._store.get(corpus_id)
        packed_parts = [
            (await self._store.contexts(corpus_id, [number]))[number] for number in range(row.parts)
        ]
        return lambda: _joined_texts(packed_parts)

    async def remove(self, corpus_id: str) -> str:
        """Delete a corpus with its results. A job that reads it is cancelled first.

        Raises:
            Refusal: CORPUS_NOT_FOUND.
        """
        await self._store.get(corpus_id)
        job = self._reading.get(corpus_id)
        if job is not None and not job.over.is_set():
            await self._jobs.drop(job.id)
        await self._store.remove(corpus_id)
        self._results.forget()
        return corpus_id

    async def add_results(
        self, corpus_id: str, file: bytes, model: str, sae_ids: Mapping[str, str]
    ) -> None:
        """Store the results in a file under an id of its own, unless this very corpus is there. Other results under
        this id stay until the new ones are stored whole. `sae_ids` has the ids of the SAEs of the file by their names.

        Raises:
            Refusal: CORPUS_ALREADY_EXISTS where another corpus has its name, CORPORA_FULL, INSUFFICIENT_DISK.
        """
        stored = await self._threads.run(corpus_of, file)
        saes = [
            ReadSae(number, one.key, sae_ids[one.name], one.layer, one.site, one.d_sae)
            for number, one in enumerate(stored.saes)
        ]
        namesake = await self._store.named(stored.name)
        if namesake is not None and namesake.id != corpus_id:
            raise taken(stored.name)
        if await self._is_stored(corpus_id, stored, saes):
            return
        coming = corpus_id + COMING
        await self._store.discard(coming)  # its storing was cut
        row = await self._store.add(stored.name + COMING, model, stored.asked, saes, coming)
        try:
            await self._store.set_digest(row.id, stored.digest)
            await self._write(row.id, stored)
            await self._store.replace(corpus_id, row.id, stored.name)
        except BaseException:
            await self._store.discard(row.id)
            raise
        self._results.forget()

    # ------------------------------------------------------------- reading

    async def start(self, asked: CorpusRequest) -> Job:
        """Begin to read a corpus, or carry one on that was cut. Its job is refused what a scoring request is refused,
        with the place of the text; VALIDATION_ERROR for a line of a file; CORPUS_ALREADY_EXISTS where the corpus to
        carry on has other texts; CORPORA_FULL; and MODEL_NOT_LOADED or SAE_NOT_ATTACHED when the model or an SAE goes
        meanwhile.

        Raises:
            Refusal: VALIDATION_ERROR for the name; MODEL_NOT_LOADED, SAE_NOT_ATTACHED; INVALID_PARAMETER for a context
                that the model does not have, and for a file of no known kind; INVALID_LOCAL_PATH, PAYLOAD_TOO_LARGE,
                CORPUS_ALREADY_EXISTS, CORPORA_FULL, TOO_MANY_JOBS.
        """
        check_written(asked.name, "name")
        resident = self._conductor.loaded()
        _, facts = resident.running()
        asked.check_context(facts)
        self._store.check_kept()
        await self._sources.check_source(asked.source)
        async with self._starting:
            row = await self._store.named(asked.name)
            if row is None:
                row = await self._added(asked, resident)
            else:
                self._check_same(row, asked)
            saes = _attached(resident, await self._store.saes(row.id))
            begun = _Begun(asked, row, resident, saes)
            job = self._jobs.start(KIND, partial(self._run, begun))
            self._reading[row.id] = job
        return job

    # ------------------------------------------------------------- inside

    async def _is_stored(
        self, corpus_id: str, stored: StoredCorpus, saes: Sequence[ReadSae]
    ) -> bool:
        row = await self._store.find(corpus_id)
        there = [(one.key, one.sae_id) for one in await self._store.saes(corpus_id)]
        return (
            row is not None
            and row.finished_at is not None
            and (row.digest, row.asked) == (stored.digest, stored.asked)
            and there == [(one.key, one.sae_id) for one in saes]
        )

    async def _write(self, corpus_id: str, stored: StoredCorpus) -> None:
        """Write the contexts and the results of a file."""
        parts = range(0, len(stored.contexts), PART)
        for number, first in enumerate(parts):
            is_last = number == len(parts) - 1
            contexts = await self._threads.run(packed, stored.contexts[first : first + PART])
            done = (stored.texts, 0, stored.tokens, stored.counted) if is_last else ()
            await self._store.add_part(corpus_id, contexts, [], Progress(number + 1, *done))
        for number, sae in enumerate(stored.saes):
            found = await self._threads.run(_encoded, sae)
            await self._store.add_features(corpus_id, number, found)
        results = {number: (sae.maxima, sae.counts) for number, sae in enumerate(stored.saes)}
        await self._store.finish(corpus_id, results)

    async def _record(self, row: CorpusRow) -> CorpusRecord:
        job = self._reading.get(row.id)
        is_done = row.finished_at is not None
        is_read = not is_done and job is not None and not job.over.is_set()
        state: CorpusState = "done" if is_done else "reading" if is_read else "stopped"
        return CorpusRecord(
            id=row.id,
            name=row.name,
            state=state,
            source=msgspec.convert(row.asked["source"], CorpusSource),
            model=row.model,
            saes=[
                CorpusSae(
                    sae_id=sae.sae_id,
                    layer=sae.layer,
                    site=sae.site,
                    features=await asyncio.to_thread(_firing, sae.counts) if is_done else None,
                )
                for sae in await self._store.saes(row.id)
            ],
            texts=row.next_text + bool(row.next_token),
            tokens=row.tokens,
            counted=row.counted,
            max_tokens=row.asked["max_tokens"],
            context=row.asked["context"],
            examples=row.asked["examples"],
            stored_bytes=row.stored_bytes,
            job_id=job.id if job is not None and is_read else None,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )

    async def _added(self, asked: CorpusRequest, resident: Resident) -> CorpusRow:
        attached = list(resident.attachments.values())
        if not attached:
            raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached whose features could be read")
        saes = [
            ReadSae(number, content_key(resident, one), one.sae_id, one.layer, one.site, one.d_sae)
            for number, one in enumerate(attached)
        ]
        return await self._store.add(asked.name, resident.row.name, asked.lasting, saes)

    def _check_same(self, row: CorpusRow, asked: CorpusRequest) -> None:
        """Check that a corpus can be carried on by this request.

        Raises:
            Refusal: CORPUS_ALREADY_EXISTS.
        """
        if row.finished_at is not None:
            raise taken(row.name, corpus_id=row.id)
        job = self._reading.get(row.id)
        if job is not None and not job.over.is_set():
            raise taken(row.name, "a job reads this corpus now", corpus_id=row.id, job_id=job.id)
        if row.asked != asked.lasting:
            why = "it was begun with other fields; send these again, or delete it"
            raise taken(row.name, why, corpus_id=row.id)

    async def _run(self, begun: _Begun, report: Report) -> CorpusRecord:
        """Read the texts of a corpus, and compute its results."""
        row, ended = begun.row, Event()
        try:
            texts = await self._sources.open(begun.asked, ended)
            report(0.0, "the texts are checked")
            digest = await self._sources.digest(texts())
            if row.digest is None:
                await self._store.set_digest(row.id, digest)
            elif row.digest != digest:
                why = "it was begun with other texts; send these again, or delete it"
                raise taken(row.name, why, corpus_id=row.id)
            await self._read(begun, texts, report)
        finally:
            ended.set()
        row = await self._store.get(row.id)
        summary = Summary(self._store, row, begun.asked.examples, self._threads)
        await summary.make(
            lambda share: report(READ_SHARE + (1 - READ_SHARE) * share, "the results are computed")
        )
        self._results.forget()
        return await self._record(await self._store.get(row.id))

    async def _read(self, begun: _Begun, texts: Texts, report: Report) -> None:
        """Read what is left of a corpus, and write each part."""
        asked, row, resident, saes = begun.asked, begun.row, begun.resident, begun.saes
        goal = m.ReadActivations(keys=[one.key for one in saes])
        done = Progress(row.parts, row.next_text, row.next_token, row.tokens, row.counted)
        place = Place(row.next_text, row.next_token, row.tokens)
        async with aclosing(self._sources.cuts(asked, place, resident, texts())) as cuts:
            async for part in parts_of(cuts, PART):
                read = await self._reader.read(
                    [NamedText(cut.name, m.Tokens(cut.ids)) for cut in part],
                    resident,
                    m.Request(goal=goal, prompts=(), client=KIND),
                    of_kind(m.ActivationsRead),
                    check=lambda: check_held(resident, saes),
                    told=token_reporter(report, asked, part, done.tokens, share=READ_SHARE),
                    is_gentle=True,
                )
                after = part[-1].after
                done = Progress(
                    done.parts + 1,
                    after.text,
                    after.token,
                    after.tokens,
                    done.counted + sum(one.positions for one in read),
                )
                held = [Context(cut.text, cut.start, cut.skip, cut.pieces) for cut in part]
                contexts = await self._threads.run(packed, held)
                activations = [
                    await self._threads.run(packed, [_groups(one.saes[i]) for one in read])
                    for i in range(len(saes))
                ]
                await self._store.add_part(row.id, contexts, activations, done)


def _joined_texts(packed_parts: Sequence[bytes]) -> Iterator[CorpusText]:
    """The texts of contexts, whose tokens follow each other.

    Raises:
        Refusal: INVALID_PARAMETER for a text with a character that is divided among tokens, whose texts lack it.
    """
    contexts = (one for part in packed_parts for one in unpacked(part, list[Context]))
    for number, some in groupby(contexts, lambda one: one.text):
        place = f"text {number} of the corpus"
        text = "".join(piece for one in some for piece in one.pieces[one.skip :])
        if BROKEN in text:
            why = f"{place} has a character that is divided among tokens; send its texts"
            raise Refusal("INVALID_PARAMETER", why, param="corpus_id")
        yield place, text


def _attached(resident: Resident, saes: Sequence[ReadSae]) -> list[Attachment]:
    """The attachments of the SAEs of a corpus.

    Raises:
        Refusal: SAE_NOT_ATTACHED.
    """
    by_content = {
        key: one for one in resident.attachments.values() for key in content_keys(resident, one)
    }
    for sae in saes:
        if sae.key not in by_content:
            raise Refusal(
                "SAE_NOT_ATTACHED",
                f"the corpus was begun with the SAE {sae.sae_id} at layer {sae.layer}, which is not attached",
                sae_id=sae.sae_id,
                layer=sae.layer,
            )
    return [by_content[sae.key] for sae in saes]


def _groups(read: m.FeatureValues) -> tuple[bytes, bytes, bytes, bytes]:
    return read.features, read.counts, read.positions, read.values


def _encoded(sae: StoredSae) -> dict[int, bytes]:
    return {index: packed(found) for index, found in sae.features.items()}


def _firing(counts: bytes) -> int:
    return sum(1 for at in range(0, len(counts), 4) if counts[at : at + 4] != bytes(4))
