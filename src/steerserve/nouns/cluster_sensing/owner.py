"""Cluster sensing: which cluster the engine senses, and the record of its firings.

The active profile is sensed while it is a cluster whose sensing an operator has enabled, and its SAE is attached. The
record of a profile has the wish of the operator; this module follows it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import structlog
from msgspec import structs

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.sensing.arming import ArmedAt
from steerserve.control.sensing.recorder import Recorder
from steerserve.control.sensing.sensing_views import SensingIntent
from steerserve.control.sensing.sensor import Sensor
from steerserve.control.steering.events import ActiveProfileChanged
from steerserve.control.steering.serving import Serving
from steerserve.errors import Refusal
from steerserve.messages.carried import carried
from steerserve.messages.engine import Engine
from steerserve.nouns.cluster_sensing import rules
from steerserve.nouns.cluster_sensing.form import (
    ClusterFired,
    ClusterFirings,
    ClusterSensingReport,
    FiringRetention,
    QuorumChange,
    SensingChange,
    cluster_firing,
)
from steerserve.nouns.cluster_sensing.rules import ClusterPlan, Thresholds
from steerserve.nouns.clusters.rules import Cluster
from steerserve.nouns.profiles.store import ProfileRow, ProfileStore
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.sensing.firings import (
    ClusterFiringRecord,
    cluster_facts,
    cluster_record,
)
from steerserve.rules.steering import evidence
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts of the armed cluster that its status shows."""

    name: str
    plan: ClusterPlan


_Armed = ArmedAt[m.ArmedCluster, ClusterFacts]


class ClusterSensing(Sensor[m.ArmedCluster, ClusterFacts]):
    """Decides which cluster is armed. `Serving.editing` is held while that is decided."""

    NOUN = "sensing"
    FOLLOWS = ActiveProfileChanged

    def __init__(
        self,
        settings: Settings,
        documents: ProfileStore,
        serving: Serving,
        conductor: Conductor,
        bus: Bus,
        recorder: Recorder,
    ) -> None:
        super().__init__(conductor, bus, recorder)
        self._settings = settings
        self._documents = documents
        self._serving = serving
        recorder.publish(lambda row: bus.publish(ClusterFired(cluster_facts(row))))
        self._thresholds = Thresholds(settings.sensing_epsilon, settings.sensing_theta_floor)
        self._armings = itertools.count(1)
        serving.follow(self._follow)

    # ------------------------------------------------------------- reading

    @property
    def is_armed(self) -> bool:
        """Whether an engine senses a cluster now."""
        return self._arming.now is not None

    async def status(self) -> ClusterSensingReport:
        await self._catch_up()
        armed, settings = self._arming.now, self._settings
        enabled = await self._documents.sensed()
        return ClusterSensingReport(
            note=evidence.OBSERVATION,
            armed=armed is not None,
            profile_id=armed.message.subject if armed else None,
            profile_name=armed.facts.name if armed else None,
            member_count=len(armed.facts.plan.members) if armed else 0,
            sensable_count=armed.facts.plan.sensable_count if armed else 0,
            min_k=armed.facts.plan.min_k if armed else None,
            threshold_mode=armed.facts.plan.mode if armed else None,
            context_tokens=armed.message.context_tokens if armed else None,
            last_request_overhead_ms=self._overhead,
            overhead_warn_threshold_ms=settings.sensing_max_overhead_ms,
            events_recorded_since_start=self.recorder.written,
            ws_events_dropped=0,  # publishing an event inside the service cannot fail
            ws_events_throttled=self.recorder.throttled,
            retention=FiringRetention(
                settings.sensing_max_events_per_cluster, settings.sensing_max_age_days
            ),
            enabled_clusters=tuple(
                SensingIntent(profile_id, name, profile_id == self._serving.profile_id)
                for profile_id, name in enabled
            ),
        )

    async def events(
        self, limit: int, profile_id: str | None = None, since: datetime | None = None
    ) -> ClusterFirings:
        """The newest events first, and how many there are."""
        rows, total = await self.recorder.newest(limit, subject=profile_id, since=since)
        return ClusterFirings([cluster_record(row) for row in rows], total)

    async def event(self, event_id: int) -> ClusterFiringRecord:
        """Raises:
        Refusal: SENSING_EVENT_NOT_FOUND.
        """
        return cluster_record(await self._row(event_id))

    # ------------------------------------------------------------- editing

    @carried
    async def enable(self, profile_id: str, *, enabled: bool = True) -> SensingChange:
        """Enable or disable the sensing of a cluster.

        Raises:
            Refusal: PROFILE_NOT_FOUND; VALIDATION_ERROR for a plain profile, and for an active cluster that cannot be
                armed. In the last case its sensing stays enabled.
        """
        async with self._serving.editing:
            row, _ = await self._cluster(profile_id)
            if row.sensing_enabled != enabled:
                row = await self._documents.change_profile(profile_id, {"sensing_enabled": enabled})
            return SensingChange(profile_id, enabled, await self._rearm(row))

    @carried
    async def configure(self, profile_id: str, min_k: int | None) -> QuorumChange:
        """Set the quorum of a cluster; None stands for all sensable members, also over the quorum of the document.

        Raises:
            Refusal: PROFILE_NOT_FOUND; VALIDATION_ERROR for a plain profile, for a quorum above the number of sensable
                members, and where an active cluster cannot be armed.
        """
        async with self._serving.editing:
            row, cluster = await self._cluster(profile_id)
            wanted = rules.ALL_SENSABLE if min_k is None else min_k
            plan = self._plan_or_none(cluster, wanted)
            if min_k is not None:
                sensable = plan.sensable_count if plan else 0
                rules.check_quorum(min_k, len(cluster.members), sensable)
            if row.sensing_min_k != wanted:
                row = await self._documents.change_profile(profile_id, {"sensing_min_k": wanted})
            armed = await self._rearm(row)
        return QuorumChange(profile_id, min_k, plan.min_k if plan else None, armed)

    # ------------------------------------------------------------- arming

    async def _follow(self, row: ProfileRow | None) -> bool:
        """Called after each change of the active profile. Sensing that fails never fails the change."""
        why = await self._arming.arm(partial(self._wanted, row))
        if why is not None:
            log.warning("cluster_not_armed", profile_id=row.id if row else None, reason=why.message)
        return self.is_armed

    async def _rearm(self, row: ProfileRow) -> bool:
        """Arm the cluster as its record is now, if it is active. The caller holds `Serving.editing`.

        Raises:
            Refusal: VALIDATION_ERROR where it cannot be armed; ENGINE_UNAVAILABLE where it cannot be disarmed.
        """
        if self._serving.profile_id != row.id:
            return False
        why = await self._arming.arm(partial(self._wanted, row))
        if why is not None and not row.sensing_enabled:
            raise why
        if why is not None:
            message = f"sensing stays enabled, but the cluster cannot be armed: {why.message}"
            details = {"profile_id": row.id, "reason": why.message}
            raise refuse_value(["path", "profile_id"], why.message, message, **details)
        return self.is_armed

    async def _wanted(self, row: ProfileRow | None) -> _Armed | None:
        """What is to be armed for the active profile.

        Raises:
            Refusal: why the cluster cannot be armed.
        """
        if row is None or row.cluster is None or not row.sensing_enabled:
            return None
        cluster, attachment = row.cluster, self._site(row)
        if cluster.sae.n_features not in (None, attachment.d_sae):
            raise Refusal(
                "VALIDATION_ERROR",
                f"the cluster is made for {cluster.sae.n_features} features; the SAE has {attachment.d_sae}",
            )
        plan = rules.plan(cluster.members, cluster.sensing, self._thresholds, row.sensing_min_k)
        engine, _ = self._conductor.loaded().running()
        settings, asked = self._settings, cluster.sensing.context_tokens
        armed = m.ArmedCluster(
            subject=row.id,
            title=cluster.display_token or row.name,
            key=attachment.key,
            members=[
                m.ClusterMember(one.feature_idx, one.theta, one.label) for one in plan.members
            ],
            min_k=plan.min_k,
            max_events=settings.sensing_max_events_per_request,
            context_tokens=rules.context_tokens(asked, settings.sensing_context_tokens),
        )
        return ArmedAt(engine, (attachment,), armed, ClusterFacts(row.name, plan))

    async def _send(self, engine: Engine, message: m.ArmedCluster | None) -> None:
        """Let an engine sense the cluster. What was reported under an earlier arming counts no more."""
        if message is not None and self._settings.sensing_dedup_history:
            message = structs.replace(message, history=next(self._armings))
        await engine.change(m.setting(cluster=message))

    def _site(self, row: ProfileRow) -> Attachment:
        """The SAE that the cluster steers, or the first that fits it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attached = self._conductor.attachments()
        active = self._serving.live.active
        key = active.key if active is not None and active.id == row.id else None
        steered = next((one for one in attached if one.key == key), None)
        if steered is not None:
            return steered
        assert row.cluster is not None
        fitting = row.cluster.choice(row.sae_id).among(attached)
        if not fitting:
            raise Refusal("SAE_NOT_ATTACHED", "no attached SAE fits the cluster")
        return fitting[0]

    # ------------------------------------------------------------- events

    async def _sync(self) -> None:
        try:
            async with self._serving.editing:
                await self._follow(await self._serving.active())
        except Refusal as refusal:
            log.warning("cluster_not_armed", reason=refusal.message)

    def _listen(self, engine: Engine) -> None:
        engine.on_spans = self._take

    def _take(self, told: m.SensedSpans) -> None:
        self._record(told, [cluster_firing(told, span) for span in told.spans])

    # ------------------------------------------------------------- inside

    async def _cluster(self, profile_id: str) -> tuple[ProfileRow, Cluster]:
        row = await self._documents.row(profile_id)
        if row.cluster is None:
            why = "the profile is not a cluster, and only clusters are sensed"
            details = {"profile_id": row.id, "source_kind": row.source_kind}
            raise refuse_value(["path", "profile_id"], why, **details)
        return row, row.cluster

    def _plan_or_none(self, cluster: Cluster, min_k: int) -> ClusterPlan | None:
        try:
            return rules.plan(cluster.members, cluster.sensing, self._thresholds, min_k)
        except Refusal:
            return None
