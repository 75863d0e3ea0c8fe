"""The features that promote a word: the promoted tokens of all features of an attached SAE, computed once as a job."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from steerserve import messages as m
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, content_key
from steerserve.errors import Refusal
from steerserve.messages.spelling import Spell
from steerserve.nouns.features.form import FeatureSearch, SimilarFeature
from steerserve.nouns.features.owner import Features
from steerserve.nouns.promotions.form import PromotedFeatures
from steerserve.nouns.promotions.store import PromotedStore
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.saes.sites import STREAM_SITES
from steerserve.rules.sensing import promoting as rules
from steerserve.rules.sensing.promoting import PromotedTable

log = structlog.get_logger(__name__)

KIND = "promoted_tokens"
AT_ONCE = 4096
"""The most features of one question. The engine answers as many of them as do not hold up the batch."""
TABLES_KEPT = 2
"""The tables in memory, those that were used last."""


class Promotions:
    """Owner of the tables of promoted tokens, and of the jobs that compute them."""

    def __init__(
        self, store: PromotedStore, features: Features, conductor: Conductor, jobs: Jobs
    ) -> None:
        self._store = store
        self._features = features
        self._conductor = conductor
        self._jobs = jobs
        self._tables: dict[str, PromotedTable] = {}
        self._computing: dict[str, Job] = {}

    async def search(self, sae_id: str, word: str, limit: int) -> FeatureSearch | Job:
        """The features that promote the tokens of a word, as it is written or behind a space, the strongest first. A
        job that computes the promoted tokens where they are not known; the same search finds them after the job.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_NOT_ATTACHED; SAE_INCOMPATIBLE for an SAE that does not write into the residual
                stream; VALIDATION_ERROR for a word without tokens; MODEL_NOT_LOADED, ENGINE_UNAVAILABLE, TOO_MANY_JOBS.
        """
        resident, attached = await self._attached(sae_id)
        key = content_key(resident, attached)
        table = await self._known(key)
        if table is None:
            job = self._computing.get(key)
            if job is None or job.over.is_set():
                work = partial(self._compute, resident, attached, key)
                job = self._computing[key] = self._jobs.start(KIND, work)
            return job
        spellings = await self._spellings(resident, word)
        found = await asyncio.to_thread(rules.promoting, table, spellings)
        labels = await self._features.labels(sae_id)
        best = [
            SimilarFeature(index, labels.get(index), None, value) for index, value in found[:limit]
        ]
        return FeatureSearch(sae_id, word, None, best, len(found))

    # ------------------------------------------------------------- inside

    async def _attached(self, sae_id: str) -> tuple[Resident, Attachment]:
        sae_id = await self._features.own_id(sae_id)
        resident = self._conductor.loaded()
        for attached in resident.attachments.values():
            if attached.sae_id == sae_id:
                if attached.site in STREAM_SITES:
                    return resident, attached
                raise Refusal(
                    "SAE_INCOMPATIBLE",
                    f"the values of the site {attached.site} are not added to the residual stream",
                    sae_id=sae_id,
                    site=attached.site,
                )
        raise Refusal("SAE_NOT_ATTACHED", "the SAE is not attached", sae_id=sae_id)

    async def _known(self, key: str) -> PromotedTable | None:
        table = self._tables.get(key)
        if table is None:
            try:
                table = await self._store.get(key)
            except Refusal as refusal:
                if refusal.code != "DATABASE_UNAVAILABLE":
                    raise
        if table is not None:
            self._keep(key, table)
        return table

    def _keep(self, key: str, table: PromotedTable) -> None:
        self._tables.pop(key, None)
        self._tables[key] = table
        while len(self._tables) > TABLES_KEPT:
            del self._tables[next(iter(self._tables))]

    async def _compute(
        self, resident: Resident, attached: Attachment, key: str, report: Report
    ) -> PromotedFeatures:
        engine, _ = resident.running()
        tokens, values = bytearray(), bytearray()
        top, done = rules.KEPT, 0
        while done < attached.d_sae:
            part = list(range(done, min(done + AT_ONCE, attached.d_sae)))
            answer = await engine.ask(m.Promote(key=attached.key, features=part, top=top))
            top, done = answer.top, done + answer.count
            tokens += rules.promoted_half(answer.tokens, top)
            values += rules.promoted_half(answer.values, top)
            report(done / attached.d_sae, f"{done} of {attached.d_sae} features are computed")
        table = PromotedTable(top, bytes(tokens), bytes(values))
        self._keep(key, table)
        try:
            await self._store.put(key, table)
        except Refusal as refusal:
            # the table is in memory, and is computed anew after a restart
            log.warning("promoted_tokens_not_stored", code=refusal.code, reason=refusal.message)
        return PromotedFeatures(attached.sae_id, attached.layer, done, top)

    async def _spellings(self, resident: Resident, word: str) -> list[list[int]]:
        """The tokens of the word as it is written, and behind a space."""
        engine, _ = resident.running()
        texts = dict.fromkeys((word, f" {word.strip()}"))
        spelled = [
            (await engine.ask(Spell(prompt=m.Text(text, special=False), longest=len(text)))).ids
            for text in texts
        ]
        spellings = [ids for ids in spelled if ids]
        if not spellings:
            why = "the word has no tokens"
            raise refuse_value(["body", "query"], why, f"query: {why}")
        return spellings
