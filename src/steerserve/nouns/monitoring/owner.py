"""Monitoring of the first attached SAE: the configuration, the records of finished generations, and access to the
statistics, which the engine keeps.

The state follows the engine. An edit takes effect when the engine has accepted it, and monitoring is enabled only while
that engine has the SAE attached. After a crash, the next engine gets the same configuration when the SAE has been
attached again. A detach ends monitoring; an operator has to enable it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engine_state import EngineState, Return, unchanged
from steerserve.control.residency.events import ATTACHMENTS_CHANGED
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.sensing.sensing_views import context_of
from steerserve.database.catalog import Clock
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.messages.carried import carry_edit
from steerserve.messages.engine import Engine
from steerserve.nouns.monitoring import rules
from steerserve.nouns.monitoring.form import (
    Counted,
    FeatureActivation,
    FeatureContexts,
    MonitoredContext,
    MonitoringActivation,
    MonitoringReport,
    MonitoringState,
)
from steerserve.nouns.monitoring.rules import Configuration, Record, Ring
from steerserve.rules.sensing import ranking
from steerserve.rules.sensing.ranking import Rank, Scales

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Watch:
    """The configuration that was lost in a crash, and the place of its SAE (see `Attachment.place`)."""

    place: tuple[int, str]
    wanted: Configuration


class Monitoring(EngineState[_Watch]):
    """Owner of the configuration and of the ring of records."""

    def __init__(
        self,
        conductor: Conductor,
        bus: Bus,
        now: Clock,
        contexts: int,
        corpora: CorpusResults,
    ) -> None:
        self._conductor = conductor
        self._contexts = contexts
        self._corpora = corpora
        self._bus = bus
        self._now = now
        self._wanted = Configuration()
        # the attachment to which `_wanted.enabled` and `_wanted.features` apply
        self._meant: Attachment | None = None
        self._running: tuple[Engine, Attachment] | None = None
        self._counting: tuple[Engine, Attachment, datetime] | None = None
        self._ring = Ring(self._wanted.history_size)
        self._told = False
        self._editing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        bus.subscribe(self._notice)
        self._losses = conductor.restoring.register(self)

    # ------------------------------------------------------------- reading

    def key(self) -> str | None:
        """The key of the attachment that the engine monitors now; None while monitoring is off."""
        if self._running is None:
            return None
        engine, attached = self._running
        return attached.key if self._serves(engine, attached) else None

    def watched(self) -> int:
        """How many features are monitored now."""
        if self._running is None or self.key() is None:
            return 0
        features = self._wanted.features
        return self._running[1].d_sae if features is None else len(features)

    def state(self) -> MonitoringReport:
        attached = self._first()
        features = (
            self._wanted.features if attached is not None and attached is self._meant else None
        )
        return MonitoringReport(
            enabled=attached is not None and self.key() == attached.key,
            sae_attached=attached is not None,
            sae_id=attached.sae_id if attached else None,
            layer=attached.layer if attached else None,
            monitored_features=features or (),
            history_size=self._wanted.history_size,
            history_count=len(self._ring),
            top_k=self._wanted.top_k,
            read_point=rules.READ_POINT,
        )

    def history(self, limit: int, request_id: str | None = None) -> list[Record]:
        """The records, newest first.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        self._conductor.first_attachment()
        return self._ring.newest(limit, request_id)

    def chosen(self, features: Sequence[int] | None) -> tuple[int, ...] | None:
        """The features that a client named, each once and in order; None where it named none.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX.
        """
        attached = self._conductor.first_attachment()
        return None if features is None else rules.chosen(features, attached.d_sae)

    async def statistics(
        self, features: Sequence[int] | None = None, metric: str | None = None, k: int = 10
    ) -> Counted:
        """The statistics of `features`, or of all observed features if none are named. With a metric, only the `k`
        features with the largest values of the metric.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX.
        """
        attached = self._conductor.first_attachment()
        asked = None if features is None else list(rules.chosen(features, attached.d_sae))
        counting = self._counting_at(attached)
        if counting is None:
            return Counted(attached.sae_id, [], 0, 0, None, 0)
        engine, since = counting
        counts = await engine.ask(m.ReadStatistics(features=asked, metric=metric, k=k))
        figures = counts.features, counts.tokens, counts.activations
        return Counted(attached.sae_id, *figures, since, counts.lost_requests)

    async def ranked(self, metric: str, k: int, rank: Rank) -> Counted:
        """The statistics of the first `k` features, ranked by their metric as `rules/sensing/ranking.py` says.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INVALID_PARAMETER without a corpus of this SAE; DATABASE_UNAVAILABLE.
        """
        scales = await self.scales()
        counted = await self.statistics()

        def facts(one: m.FeatureCount) -> float:
            value = one.count * one.active_ratio if metric == "count" else getattr(one, metric)
            return scales.figure(rank, one.feature_idx, value, metric)

        listed = await asyncio.to_thread(sorted, counted.features, key=facts, reverse=True)
        first = listed[:k]
        return replace(counted, features=first, weights=[*map(facts, first)])

    def place(self) -> tuple[str, int]:
        """The first attached SAE, and the layer where it is attached.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attached = self._conductor.first_attachment()
        return attached.sae_id, attached.layer

    async def scales(self) -> Scales:
        """What corpora tell of the features of the first attached SAE.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INVALID_PARAMETER without a corpus of this SAE; DATABASE_UNAVAILABLE.
        """
        attached = self._conductor.first_attachment()
        scales = await self._corpora.scales(attached)
        if scales is None:
            raise ranking.unknown("rank")
        return scales

    async def contexts(self, feature: int, k: int) -> FeatureContexts:
        """The texts in which a feature had its `k` largest values, of the tokens that were monitored last.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX.
        """
        attached = self._conductor.first_attachment()
        rules.chosen([feature], attached.d_sae)
        counting = self._counting_at(attached)
        if counting is None or not self._contexts:
            return FeatureContexts(attached.sae_id, feature, self._contexts, 0, [])
        read = await counting[0].ask(m.ReadContexts(feature=feature, k=k))
        contexts = [_context(one) for one in read.contexts]
        return FeatureContexts(attached.sae_id, feature, self._contexts, read.kept, contexts)

    async def counted(self, key: str, index: int) -> m.FeatureCount | None:
        """The statistics of one feature at the attachment with this key; None if the feature was not observed."""
        first = self._first()
        if first is None or first.key != key:
            return None
        return next(iter((await self.statistics([index])).features), None)

    # ------------------------------------------------------------- editing

    async def configure(
        self,
        *,
        enabled: bool = True,
        features: Sequence[int] | None = None,
        history_size: int = rules.HISTORY_DEFAULT,
        top_k: int = rules.TOP_K_DEFAULT,
    ) -> MonitoringReport:
        """Replace the whole configuration. Of the records, the newest are kept, at most `history_size`.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, or a refusal of the engine. Nothing has changed then.
        """
        return await self._edit(
            lambda attached, _: Configuration(
                enabled,
                None if features is None else rules.chosen(features, attached.d_sae),
                history_size,
                top_k,
            )
        )

    async def enable(self, enabled: bool) -> MonitoringReport:
        """Switch monitoring on or off, and keep the rest of the configuration.

        Raises:
            Refusal: SAE_NOT_ATTACHED, or a refusal of the engine.
        """
        return await self._edit(lambda _, wanted: replace(wanted, enabled=enabled))

    def clear_history(self) -> int:
        """Delete the records, and return how many there were.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        self._conductor.first_attachment()
        return self._ring.clear()

    async def reset_statistics(self) -> int:
        """Reset the statistics, and return how many features had statistics.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        async with self._editing:
            attached = self._conductor.first_attachment()
            counting = self._counting_at(attached)
            if counting is None:
                return 0
            engine, _ = counting
            cleared = len((await engine.ask(m.ReadStatistics())).features)
            await engine.ask(m.ResetStatistics())
            self._counting = (engine, attached, self._now())
            return cleared

    # ------------------------------------------------------------- inside

    async def _edit(
        self, step: Callable[[Attachment, Configuration], Configuration]
    ) -> MonitoringReport:

        async def edit() -> MonitoringReport:
            attached = self._conductor.first_attachment()
            before = self._wanted
            if attached is not self._meant:
                before = replace(before, enabled=False, features=None)
            wanted = step(attached, before)
            await self._push(attached, wanted)
            if attached is not self._first():
                raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached meanwhile")
            self._wanted, self._meant = wanted, attached
            # the new configuration replaces a configuration that was lost in a crash
            self._losses.clear()
            self._ring.resize(wanted.history_size)
            self._tell(is_always=True)
            return self.state()

        return await carry_edit(self._editing, edit)

    async def _push(self, attached: Attachment, wanted: Configuration) -> None:
        """Send the configuration for this attachment to the engine. If the engine refuses, it goes on as before."""
        engine, _ = self._conductor.loaded().running()
        if not wanted.enabled:
            if self.key() is not None:
                await engine.change(m.setting(monitored=None))
            self._running = None
            return
        is_new = self._counting_at(attached) is None
        if is_new:
            await engine.ask(m.ResetStatistics())
        engine.on_record = self._take
        features = None if wanted.features is None else list(wanted.features)
        monitored = m.Monitored(attached.key, features, wanted.top_k, self._contexts)
        await engine.change(m.setting(monitored=monitored))
        self._running = (engine, attached)
        if is_new:
            self._counting = (engine, attached, self._now())

    def _take(self, seen: m.Recorded) -> None:
        """Keep the record of a choice that has ended, and publish it."""
        sae_id, layer = rules.place_of(seen.key)
        record = Record(
            self._now(),
            seen.label,
            sae_id,
            layer,
            seen.choice,
            seen.position,
            seen.token,
            rules.activations(seen.activations),
            rules.activations(seen.top_k),
            seen.fired,
            self._wanted.features,
        )
        self._ring.add(record)
        self._bus.publish(
            MonitoringActivation(
                record.timestamp,
                record.request_id,
                record.position,
                [FeatureActivation(index, value) for index, value in record.top_k],
            )
        )

    def _notice(self, event: object) -> None:
        """Called by the bus with every event. When the attachments have changed, the new state is published at once. No
        command to the engine is awaited here."""
        if not isinstance(event, ATTACHMENTS_CHANGED):
            return
        if self._meant is not None and self._meant is not self._first():
            self._forget()
        self._tell()

    def _forget(self) -> None:
        """The SAE is no longer attached: drop whether it was monitored, its features and its statistics. The records
        stay."""
        self._wanted = replace(self._wanted, enabled=False, features=None)
        self._meant = self._running = self._counting = None

    def lost(self, resident: Resident) -> _Watch | None:
        meant = self._meant
        if meant is None or resident.attachments.get(meant.key) is not meant:
            return None
        return _Watch(meant.place, self._wanted)

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], _Watch | None]
    ) -> AsyncIterator[Switch]:
        """Monitor the first SAE again after a crash, if it is the SAE that was monitored before. The model serves
        requests without waiting for the command to the engine."""
        first, lost = next(iter(back.attached), None), loss()
        if first is None or lost is None or first.place != lost.place:
            yield unchanged
            return

        def resume() -> None:
            now = loss()
            if now is None:  # a new configuration replaced the lost one
                return
            self._wanted, self._meant = now.wanted, first
            task = background.start(self._resume(first), name="monitoring-resume")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        yield resume

    async def _resume(self, first: Attachment) -> None:
        """Send the configuration to the new engine, unless an edit has already sent another one or the SAE has been
        detached."""
        async with self._editing:
            if first is not self._meant or self._running is not None:
                return
            try:
                await self._push(first, self._wanted)
            except Refusal as refusal:
                log.warning("monitoring_not_resumed", key=first.key, reason=refusal.message)
                if first is self._meant:
                    self._wanted = replace(self._wanted, enabled=False)
            self._tell()

    def _tell(self, *, is_always: bool = False) -> None:
        state = self.state()
        if is_always or state.enabled != self._told:
            self._told = state.enabled
            self._bus.publish(MonitoringState(state.enabled, list(state.monitored_features)))

    def _first(self) -> Attachment | None:
        return next(iter(self._conductor.attachments()), None)

    def _counting_at(self, attached: Attachment) -> tuple[Engine, datetime] | None:
        """The engine that counts at this attachment, and the time since when; None if nothing is counted there."""
        if self._counting is None:
            return None
        engine, counted, since = self._counting
        return (engine, since) if counted is attached and self._serves(engine, attached) else None

    def _serves(self, engine: Engine, attached: Attachment) -> bool:
        resident = self._conductor.resident
        return (
            resident is not None
            and resident.engine is engine
            and not engine.ended.done()
            and resident.attachments.get(attached.key) is attached
        )


def _context(kept: m.FeatureContext) -> MonitoredContext:
    text, _, parts = context_of(kept.window)
    return MonitoredContext(
        activation=kept.activation,
        request_id=kept.label,
        choice=kept.choice,
        token_position=kept.position,
        context_text=text,
        context_parts=parts,
    )
