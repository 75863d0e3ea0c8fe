"""The nouns of the management API: a method for every route. Its arguments are the fields of the route, and its
annotation is the form of the answer. The bodies of functions under `@route` are never run."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

import msgspec

from steerserve.client.answers import Feature, PatchSweep
from steerserve.client.calls import (
    Awaited,
    Blocking,
    Call,
    Listing,
    Mode,
    Noun,
    Reply,
    Steps,
    answered,
    composed,
    data,
    document,
    drop_none,
    either,
    fault,
    model_of,
    path_part,
    route,
)
from steerserve.client.waiting import (
    job_of,
    job_result,
    until_cached,
    until_fetched,
    until_loaded,
    until_over,
    until_stored,
)
from steerserve.control.health.views import (
    BackendReport,
    CardReport,
    DetailedHealth,
    Liveness,
    MetricsReport,
    Readiness,
    ServiceVersion,
)
from steerserve.control.inference.views import JobList, JobRecord
from steerserve.control.sensing.sensing_views import DeletedFirings
from steerserve.control.steering.views import LiveInterventions, SteeringState
from steerserve.logs.lines import Level, LogLine, LogLines
from steerserve.nouns.captures.form import (
    CaptureDetails,
    CaptureList,
    CaptureRecord,
    DeletedCapture,
)
from steerserve.nouns.circuit_sensing.form import (
    CircuitSensingChange,
    CircuitSensingState,
    EdgeFirings,
)
from steerserve.nouns.circuits.form import (
    ActivatedCircuit,
    CircuitDetailRecord,
    CircuitList,
    CircuitRecord,
    ClaimedLayer,
    DeactivatedCircuit,
    DeletedCircuit,
    ImportedCircuitRecord,
    RedialledCircuit,
    ReleasedClaims,
)
from steerserve.nouns.cluster_packs.form import PackedDefinition
from steerserve.nouns.cluster_sensing.form import (
    ClusterFirings,
    ClusterSensingReport,
    QuorumChange,
    SensingChange,
)
from steerserve.nouns.clusters.form import (
    ActivatedCluster,
    ClusterImport,
    ClusterList,
    ClusterSummary,
    ImportedItem,
    IntensityReport,
)
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.nouns.contrasts.form import Contrast, ContrastedFeature
from steerserve.nouns.corpora.form import CorpusList, CorpusRecord, DeletedCorpus
from steerserve.nouns.directions.form import (
    DeletedProbe,
    DeletedVector,
    ProbeList,
    ProbeWeights,
    VectorList,
    VectorNeighbours,
)
from steerserve.nouns.directions.rules import ProbeRecord, VectorRecord
from steerserve.nouns.effects.form import (
    DeletedEffects,
    EffectList,
    EffectRecord,
    Effects,
    KeptEffects,
)
from steerserve.nouns.features.form import (
    FeatureLabel,
    FeatureSearch,
    ImportedLabels,
    LabelPage,
    SimilarFeature,
    VectorTokens,
)
from steerserve.nouns.lens.rules import LensRecord
from steerserve.nouns.models.form import (
    DeletedModel,
    ModelList,
    ModelRecord,
    ModelSites,
    OfferedModels,
    UnlockedModel,
)
from steerserve.nouns.monitoring.form import (
    Cleared,
    FeatureContexts,
    FeatureFigures,
    Metric,
    MonitoredContext,
    MonitoredToken,
    MonitoringHistory,
    MonitoringReport,
    MonitoringStatistics,
    TopFeatures,
)
from steerserve.nouns.patches.rules import Patches
from steerserve.nouns.profiles.form import (
    ActivatedProfile,
    DeactivatedProfile,
    DeletedProfile,
    ImportedProfileRecord,
    ProfileExport,
    ProfileList,
    ProfileRecord,
)
from steerserve.nouns.runs.form import DeletedRun, ImportedRuns, RunList
from steerserve.nouns.runs.rules import Replayed, RunSummary, ShownRun
from steerserve.nouns.saes.form import (
    AttachedSet,
    AttachmentEntry,
    AttachmentList,
    CancelledSae,
    Compatibility,
    DeletedSae,
    DetachedSae,
    FirstAttachment,
    NewAttachment,
    NoAttachment,
    OfferedSae,
    OfferedSaes,
    RegisteredSae,
    SaeDetails,
    SaeList,
    SaeRecord,
)
from steerserve.nouns.suggestions.form import AcceptedLabels, SuggestedLabel, SuggestionList
from steerserve.nouns.trained_lenses.form import DeletedLens, LensList
from steerserve.rules.jobs import JobFacts
from steerserve.rules.models.breaker import BreakerStatus
from steerserve.rules.residency.lease_status import (
    EndedLeaseStatus,
    GrantedLease,
    LeaseState,
    LeaseStatus,
)
from steerserve.rules.residency.replicas import ReplicaSet, ReplicaView
from steerserve.rules.saes.sites import ModelSite
from steerserve.rules.sensing.firings import ClusterFiringRecord, EdgeFiringRecord
from steerserve.rules.sensing.ranking import Rank

OnConflict = Literal["rename", "fail"]
FILE_PART = 1 << 24
"""The bytes of a file that are fetched at once."""
Values = Mapping[int, float]
"""Feature index -> value."""
Text = str | Sequence[Mapping[str, object]]
"""A text, or the messages of a conversation."""
Read = Literal["last", "mean", "mean_completion"] | Mapping[str, int]
"""The positions of a text that are read; `{"index": -2}` is the last but one."""
Document = Mapping[str, object]
"""A JSON document, as it was exported."""
# inside a noun with a method `list`, the name means the method
OfferedPacks = list[OfferedPack]
PackedDefinitions = list[PackedDefinition]
CircuitRecords = list[CircuitRecord]
ClaimedLayers = list[ClaimedLayer]
BreakerStatuses = list[BreakerStatus]
ProfileRecords = list[ProfileRecord]
Names = list[str]
NAMES_SHOWN = 20
"""How many names a refusal lists at most."""


def is_path(source: str) -> bool:
    """Whether a source is a folder or a file of the service's machine, and no repository of the hub."""
    return source.startswith(("/", ".", "~"))


class Models(Noun[Mode]):
    """The registered models, and the one that is loaded. A `model_id` may be the name of the model."""

    @route("GET", "/api/models", items="models")
    def list(self) -> Listing[ModelRecord, ModelList]:
        """All registered models."""

    @route("GET", "/api/models/{model_id}")
    def get(self, model_id: int | str) -> ModelRecord:
        """One model."""

    @route("GET", "/api/models/{model_id}/sites", items="sites")
    def sites(self, model_id: int | str) -> Listing[ModelSite, ModelSites]:
        """The sites of the loaded model."""

    @route("POST", "/api/models/preview")
    def preview(
        self, repo_id: str, *, revision: str | None = None, hub_token: str | None = None
    ) -> OfferedModels:
        """The models that a repository of the hub offers."""

    @route("POST", "/api/models")
    def add(
        self,
        source: Literal["huggingface", "local"],
        *,
        repo_id: str | None = None,
        local_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        quantization: Literal["FP16", "Q8", "Q4", "Q2"] = "FP16",
        gguf_label: str | None = None,
        custom_name: str | None = None,
        trust_remote_code: bool = False,
    ) -> ModelRecord:
        """Register a model, whose download goes on after the answer. `register` also waits."""

    @composed
    def register(
        self,
        /,
        repo_or_path: str,
        *,
        wait: bool = True,
        progress: bool = True,
        **fields: object,
    ) -> Steps[ModelRecord]:
        """Register a repository of the hub, or a folder or file of the service's machine, which begins with `/`, `.`
        or `~`. The fields are those of `add`.

        Args:
            wait: whether the answer waits for the download.
            progress: whether a bar shows the download meanwhile.
        """
        where = (
            {"source": "local", "local_path": repo_or_path}
            if is_path(repo_or_path)
            else {"source": "huggingface", "repo_id": repo_or_path}
        )
        retries = self._runner.retries
        reply = yield from answered(Call("POST", "/api/models", body=where | fields), retries)
        record = data(reply, ModelRecord)
        if not wait:
            return record
        return (yield from until_stored(record.id, retries, progress=progress))

    @route("POST", "/api/models/{model_id}/load", query=("wait",))
    def begin_load(
        self,
        model_id: int | str,
        *,
        gpu: int | str | None = None,
        wait: bool = False,
        lease: str | None = None,
    ) -> ModelRecord:
        """Load a model in the place of the loaded one. `load` waits with a progress bar."""

    @composed
    def load(
        self,
        model_id: int | str,
        *,
        gpu: int | str | None = None,
        lease: str | None = None,
        progress: bool = True,
    ) -> Steps[ModelRecord]:
        """Load a model in the place of the loaded one, and wait until it is loaded. Its download is waited for.

        Args:
            gpu: the index or the UUID of a card, `auto`, or `all`.
            lease: the lease on the model that is loaded now.
            progress: whether a bar shows how far it is.
        """
        retries = self._runner.retries
        if isinstance(model_id, str):
            model_id = (yield from model_of(model_id, retries)).id
        stored = yield from until_fetched(model_id, retries, progress=progress)
        if stored.status in ("loading", "loaded"):
            return (yield from until_loaded(model_id, retries, progress=progress))
        asked = drop_none(model_id=model_id, gpu=gpu, lease=lease)
        yield from answered(Models.begin_load.call(asked), retries)
        return (yield from until_loaded(model_id, retries, progress=progress))

    @route("POST", "/api/models/{model_id}/unload")
    def unload(self, model_id: int | str, *, lease: str | None = None) -> ModelRecord:
        """Take a model out of memory."""

    @route("POST", "/api/models/{model_id}/cancel")
    def cancel(self, model_id: int | str) -> ModelRecord:
        """End a download or a load."""

    @route("DELETE", "/api/models/{model_id}")
    def delete(self, model_id: int | str) -> DeletedModel:
        """Forget a model, with the files that were downloaded for it."""

    @route("POST", "/api/models/{model_id}/lock")
    def lock(self, model_id: int | str) -> ModelRecord:
        """Keep the loaded model from being replaced by requests of `/v1`."""

    @route("POST", "/api/models/{model_id}/unlock")
    def unlock(self, model_id: int | str) -> UnlockedModel: ...

    @route("POST", "/api/models/{model_id}/lease")
    def grant_lease(
        self, model_id: int | str, *, holder: str, reason: str, ttl_seconds: int | None = None
    ) -> GrantedLease:
        """Lease the loaded model, so that nobody else replaces it."""

    @route("GET", "/api/models/{model_id}/lease")
    def get_lease(self, model_id: int | str) -> LeaseState: ...

    @route("POST", "/api/models/{model_id}/lease/renew")
    def renew_lease(
        self, model_id: int | str, *, lease: str, ttl_seconds: int | None = None
    ) -> LeaseStatus: ...

    @route("DELETE", "/api/models/{model_id}/lease")
    def release_lease(self, model_id: int | str, *, lease: str) -> EndedLeaseStatus: ...

    @route("GET", "/api/models/{model_id}/replicas", items="replicas")
    def replicas(self, model_id: int | str) -> Listing[ReplicaView, ReplicaSet]:
        """The replicas of the loaded model."""

    @route("PUT", "/api/models/{model_id}/replicas")
    def resize(self, model_id: int | str, *, count: int) -> ReplicaSet:
        """Let this many replicas serve the model."""

    @route("POST", "/api/models/{model_id}/replicas/{name}/drain")
    def drain_replica(self, model_id: int | str, name: str) -> ReplicaSet:
        """End a replica after its requests."""

    @route("POST", "/api/models/{model_id}/replicas/{name}/replace")
    def replace_replica(self, model_id: int | str, name: str) -> ReplicaSet: ...


class Saes(Noun[Mode]):
    """The registered SAEs, and those that are attached to the loaded model."""

    @route("GET", "/api/saes", read=lambda reply: _sae_list(reply))
    def list(self) -> Listing[SaeRecord, SaeList]:
        """All registered SAEs."""

    @route("GET", "/api/saes/{sae_id}")
    def get(self, sae_id: str) -> SaeDetails:
        """One SAE. A repository has its units, each of which can be attached."""

    @composed
    def find(self, name: str) -> Steps[SaeRecord]:
        """The SAE with this id, name or path.

        Raises:
            ServiceError: SAE_NOT_FOUND; the message says what else could be meant.
        """
        reply = yield from answered(Call("GET", "/api/saes"), self._runner.retries)
        saes = _sae_list(reply)
        named = [one for one in saes if name in _names(one)]
        if len(named) != 1:
            known = ", ".join(one.id for one in named or saes) or "there is none"
            why = "names several SAEs" if named else "names no SAE"
            raise fault("SAE_NOT_FOUND", f"{name!r} {why}: {known}", requested=name)
        return named[0]

    @route("POST", "/api/saes/preview", items="files")
    def preview(
        self,
        repository_id: str,
        *,
        revision: str | None = None,
        file_path: str | None = None,
        hub_token: str | None = None,
        layer: int | None = None,
        width: str | None = None,
        site: str | None = None,
        query: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Listing[OfferedSae, OfferedSaes]:
        """The SAEs that a repository of the hub offers."""

    @route("POST", "/api/saes/download")
    def add(
        self,
        *,
        repository_id: str | None = None,
        file_path: str | None = None,
        sae_lens: str | None = None,
        local_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
    ) -> RegisteredSae:
        """Register an SAE, whose download goes on after the answer. `download` also waits."""

    @composed
    def download(
        self,
        /,
        repo_or_path: str | None = None,
        file_path: str | None = None,
        *,
        wait: bool = True,
        progress: bool = True,
        **fields: object,
    ) -> Steps[SaeDetails]:
        """Register the SAE at `file_path` of a repository of the hub, all SAEs of the repository where it is left out,
        or a folder or file of the service's machine, which begins with `/`, `.` or `~`. `sae_lens="release/id"` in
        their place names an SAE as SAELens does.

        Args:
            wait: whether the answer waits for the download.
            progress: whether a bar shows the download meanwhile.
        """
        where = drop_none(file_path=file_path)
        if repo_or_path is not None:
            place = "local_path" if is_path(repo_or_path) else "repository_id"
            where[place] = repo_or_path
        retries = self._runner.retries
        call = Call("POST", "/api/saes/download", body=where | fields)
        registered = data((yield from answered(call, retries)), RegisteredSae)
        if wait:
            return (yield from until_cached(registered.sae_id, retries, progress=progress))
        reply = yield from answered(
            Call("GET", f"/api/saes/{path_part(registered.sae_id)}"), retries
        )
        return data(reply, SaeDetails)

    @route("POST", "/api/saes/{sae_id}/cancel")
    def cancel(self, sae_id: str) -> CancelledSae:
        """End a download."""

    @route("DELETE", "/api/saes/{sae_id}")
    def delete(self, sae_id: str) -> DeletedSae:
        """Forget an SAE, with the files that were downloaded for it."""

    @route("POST", "/api/saes/{sae_id}/attach")
    def attach(
        self,
        sae_id: str,
        *,
        layer: int,
        dtype: str | None = None,
        overrides: Mapping[str, object] | None = None,
        check: bool = True,
    ) -> NewAttachment:
        """Attach an SAE at a decoder layer of the loaded model, in the place of the attached ones."""

    @route("POST", "/api/saes/attach-set")
    def attach_set(
        self, saes: Sequence[Mapping[str, object]], *, dtype: str | None = None
    ) -> AttachedSet:
        """Attach SAEs beside the attached ones: `[{"sae_id": …, "layer": …}]`."""

    @route("POST", "/api/saes/{sae_id}/detach")
    def detach(self, sae_id: str) -> DetachedSae: ...

    @route("GET", "/api/saes/attachment", read=lambda reply: _attachment(data(reply, dict)))
    def attachment(self) -> FirstAttachment | NoAttachment:
        """The SAE that was attached first."""

    @route("GET", "/api/saes/attachments", items="entries")
    def attachments(self) -> Listing[AttachmentEntry, AttachmentList]:
        """All attached SAEs."""

    @route("GET", "/api/saes/{sae_id}/compatibility")
    def compatibility(self, sae_id: str, *, layer: int) -> Compatibility:
        """Whether an SAE can be attached at a layer of the loaded model."""


class _RawSaeList(msgspec.Struct):
    """The list before it is known which of the two forms the attachment has."""

    saes: list[SaeRecord]
    total: int
    attachment: dict[str, object]


def _sae_list(reply: Reply) -> Listing[SaeRecord, SaeList]:
    raw = data(reply, _RawSaeList)
    answer = SaeList(raw.saes, raw.total, _attachment(raw.attachment))
    return Listing(answer.saes, answer)


def _attachment(raw: object) -> FirstAttachment | NoAttachment:
    found: FirstAttachment | NoAttachment = either(raw, [FirstAttachment, NoAttachment])
    return found


def _names(sae: SaeRecord) -> set[str | None]:
    path = f"{sae.repository_id}/{sae.file_path}"
    return {sae.id, *sae.other_ids, sae.name, sae.local_path, path}


class Steering(Noun[Mode]):
    """The live values of the attached SAEs. Without `sae_id` and `layer` the SAE that was attached first is meant."""

    @route("GET", "/api/saes/steering")
    def get(self, *, sae_id: str | None = None, layer: int | None = None) -> SteeringState:
        """The values that are set."""

    @route("POST", "/api/saes/steering")
    def set_feature(
        self, feature_idx: int, value: float, *, sae_id: str | None = None, layer: int | None = None
    ) -> SteeringState: ...

    @route("POST", "/api/saes/steering/batch")
    def batch(
        self, steering: Values, *, sae_id: str | None = None, layer: int | None = None
    ) -> SteeringState: ...

    set = batch
    """Set the values of features: `set({90: 52.5})`. Values of other features stay."""

    @route("POST", "/api/saes/steering/enable", query=("enabled",))
    def enable(self, *, enabled: bool = True) -> SteeringState:
        """Switch steering on."""

    @route("POST", "/api/saes/steering/disable")
    def disable(self) -> SteeringState:
        """Switch steering off, and keep the values."""

    @route("DELETE", "/api/saes/steering/{index}")
    def remove(
        self, index: int, *, sae_id: str | None = None, layer: int | None = None
    ) -> SteeringState:
        """Clear the value of one feature."""

    @route("DELETE", "/api/saes/steering")
    def clear(self, *, sae_id: str | None = None, layer: int | None = None) -> SteeringState:
        """Clear all values: of the named SAE, else of every SAE."""

    @route("POST", "/api/patches", query=("wait",), read=job_of)
    def begin_patches(
        self,
        clean: str | Mapping[str, object],
        corrupt: str | Mapping[str, object],
        *,
        sites: Sequence[str],
        metric: Mapping[str, object],
        align: Sequence[Sequence[int]] | None = None,
        layers: Sequence[int] | Literal["all"] = "all",
        positions: Sequence[int] | Sequence[Sequence[int]] | Literal["each", "all"] = "each",
        heads: Literal["each"] | None = None,
        direction: Literal["denoise", "noise"] = "denoise",
        noise_repeats: int = 4,
        wait: bool = False,
    ) -> JobRecord:
        """Begin the job of a patch sweep. `patches` waits for it."""

    @composed
    def patches(
        self,
        /,
        clean: str | Mapping[str, object],
        corrupt: str | Mapping[str, object],
        *,
        progress: bool = True,
        **fields: object,
    ) -> Steps[PatchSweep]:
        """What the values of one text do in another, place by place. The other fields are those of `begin_patches`.

        Args:
            progress: whether a bar shows how far it is.
        """
        call = Call("POST", "/api/patches", body={"clean": clean, "corrupt": corrupt, **fields})
        retries = self._runner.retries
        found = yield from job_result(call, Patches, "patch sweep", retries, progress=progress)
        return msgspec.convert(msgspec.to_builtins(found), PatchSweep)

    @route("POST", "/api/effects", query=("wait",), read=job_of)
    def begin_effects(
        self,
        strengths: Sequence[float],
        *,
        feature: Mapping[str, object] | None = None,
        vector: str | None = None,
        edits: Sequence[Mapping[str, object]] | None = None,
        preserve_norm: bool = False,
        prompts: Sequence[Text] | None = None,
        tokens: int = 40,
        temperature: float = 1.0,
        seed: int = 0,
        target: Mapping[str, Sequence[str]] | None = None,
        random_directions: int = 4,
        wait: bool = False,
    ) -> JobRecord:
        """Begin the job that measures a lever at these strengths. `effects` waits for it."""

    @composed
    def effects(
        self, /, strengths: Sequence[float], *, progress: bool = True, **fields: object
    ) -> Steps[Effects]:
        """What a lever does at these strengths. The other fields are those of `begin_effects`.

        Args:
            progress: whether a bar shows how far it is.
        """
        call = Call("POST", "/api/effects", body={"strengths": strengths, **fields})
        retries = self._runner.retries
        return (yield from job_result(call, Effects, "effects", retries, progress=progress))


class KeptResults(Noun[Mode]):
    """Kept results of measurements of effects, which are made by `steering.effects`."""

    @route("GET", "/api/effects", items="effects")
    def list(
        self, *, limit: int = 200, offset: int = 0, evidence_for: str | None = None
    ) -> Listing[EffectRecord, EffectList]:
        """Without their figures, the newest first; with `evidence_for` those for one profile, cluster or circuit."""

    @route("GET", "/api/effects/{effect_id}")
    def get(self, effect_id: str) -> KeptEffects: ...

    @route("DELETE", "/api/effects/{effect_id}")
    def delete(self, effect_id: str) -> DeletedEffects: ...

    @route("PUT", "/api/effects/{effect_id}/evidence/{document_id}")
    def attach(self, effect_id: str, document_id: str) -> EffectRecord:
        """Make a result evidence for a profile, a cluster or a circuit."""

    @route("DELETE", "/api/effects/{effect_id}/evidence/{document_id}")
    def detach(self, effect_id: str, document_id: str) -> EffectRecord: ...


class Interventions(Noun[Mode]):
    """The edits of features and vectors that steer every request without steering of its own."""

    @route("GET", "/api/interventions")
    def get(self) -> LiveInterventions: ...

    @route("PUT", "/api/interventions")
    def set(
        self,
        edits: Sequence[Mapping[str, object]],
        *,
        mode: Literal["add", "replace"] | None = None,
        preserve_norm: bool | None = None,
    ) -> LiveInterventions:
        """Replace the edits: `set([{"op": "ablate", "feature": {"index": 90}}])`. An empty list ends them."""

    @route("DELETE", "/api/interventions")
    def clear(self) -> LiveInterventions: ...


def form_call(
    path: str,
    name: str,
    file: str | Path,
    metadata: str | Path | None,
    fields: Mapping[str, object],
) -> Call:
    """A request whose form has a file of this machine, and the one beside it."""
    paths = {"file": Path(file)} | ({} if metadata is None else {"metadata": Path(metadata)})
    files = {field: (path.name, path.read_bytes()) for field, path in paths.items()}
    texts = {field: str(value) for field, value in drop_none(**fields).items()}
    return Call("POST", path, body={"name": name} | texts, files=files)


class Vectors(Noun[Mode]):
    """Stored directions of the activations. A `vector_id` may be the name of the vector."""

    @route("GET", "/api/vectors", items="vectors")
    def list(self, *, limit: int = 200, offset: int = 0) -> Listing[VectorRecord, VectorList]: ...

    @route("GET", "/api/vectors/{vector_id}")
    def get(self, vector_id: str) -> VectorRecord: ...

    @route("POST", "/api/vectors")
    def add(
        self,
        name: str,
        source: Literal["local", "huggingface", "inline"],
        *,
        local_path: str | None = None,
        repository_id: str | None = None,
        file_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        directions: Sequence[Mapping[str, object]] | None = None,
        model_hint: str | None = None,
        layer: int | None = None,
        layer_convention: str | None = None,
        layer_offset: int = 0,
        operation: Literal["add", "project"] | None = None,
    ) -> VectorRecord:
        """Store a vector from a file of the service's machine, from the hub, or with its numbers."""

    @composed
    def upload(
        self,
        /,
        name: str,
        file: str | Path,
        *,
        metadata: str | Path | None = None,
        **fields: object,
    ) -> Steps[VectorRecord]:
        """Store a vector from a file of this machine. The other fields are those of `add`.

        Args:
            metadata: the `direction_metadata.json` of a refusal direction.
        """
        call = form_call("/api/vectors", name, file, metadata, fields)
        return data((yield from answered(call, self._runner.retries)), VectorRecord)

    @route("DELETE", "/api/vectors/{vector_id}")
    def delete(self, vector_id: str) -> DeletedVector: ...

    @route("GET", "/api/vectors/{vector_id}/export", read=document)
    def export(
        self, vector_id: str, *, format: Literal["gguf", "safetensors", "json"] = "json"
    ) -> bytes:
        """The content of a file with the vector."""

    @route("GET", "/api/vectors/{vector_id}/neighbours")
    def neighbours(
        self,
        vector_id: str,
        *,
        limit: int = 10,
        layer: int | None = None,
        examples: bool = False,
    ) -> VectorNeighbours:
        """The features and the vectors that are nearest by cosine."""

    @route("GET", "/api/vectors/{vector_id}/tokens")
    def tokens(self, vector_id: str, *, tokens: int = 10, layer: int | None = None) -> VectorTokens:
        """The tokens that each direction promotes most and suppresses most in the loaded model."""

    @route("POST", "/api/vectors/train", query=("wait",), read=job_of)
    def train(
        self,
        name: str,
        *,
        pairs: Sequence[Mapping[str, object]] | None = None,
        positives: Sequence[Text] | None = None,
        negatives: Sequence[Text] | None = None,
        layers: Literal["all"] | Sequence[int] = "all",
        site: str = "resid_post",
        method: Literal["mean_difference", "pca", "logistic"] = "mean_difference",
        read: Read = "last",
        holdout: float = 0.3,
        seed: int = 0,
        special_tokens: bool = False,
        measure: bool = True,
        wait: bool = False,
    ) -> JobRecord:
        """Train a vector from pairs, or from two groups of texts. The job's result is the vector."""

    @route("POST", "/api/vectors/{vector_id}/measure", query=("wait",), read=job_of)
    def measure(
        self,
        vector_id: str,
        *,
        positives: Sequence[Text] | None = None,
        negatives: Sequence[Text] | None = None,
        words: Sequence[str] | None = None,
        prompts: Sequence[Text] | None = None,
        layers: Literal["auto"] | Sequence[int] = "auto",
        strengths: Literal["auto"] | Sequence[float] = "auto",
        tokens: int = 40,
        temperature: float = 1.0,
        seed: int = 0,
        random_directions: int = 4,
        wait: bool = False,
    ) -> JobRecord:
        """Measure what a vector does when it is added at one of its layers. The job's result is the vector."""


class Probes(Noun[Mode]):
    """Stored linear classifiers of the activations. A `probe_id` may be the name of the probe."""

    @route("GET", "/api/probes", items="probes")
    def list(self, *, limit: int = 200, offset: int = 0) -> Listing[ProbeRecord, ProbeList]: ...

    @route("GET", "/api/probes/{probe_id}")
    def get(self, probe_id: str) -> ProbeWeights: ...

    @route("POST", "/api/probes")
    def add(
        self,
        name: str,
        source: Literal["local", "huggingface", "inline"],
        *,
        local_path: str | None = None,
        repository_id: str | None = None,
        file_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        weights: Sequence[Mapping[str, object]] | None = None,
        model_hint: str | None = None,
        layer: int | None = None,
        layer_convention: str | None = None,
        layer_offset: int = 0,
    ) -> ProbeRecord:
        """Store a probe from a file of the service's machine, from the hub, or with its weights."""

    @composed
    def upload(
        self,
        /,
        name: str,
        file: str | Path,
        *,
        metadata: str | Path | None = None,
        **fields: object,
    ) -> Steps[ProbeRecord]:
        """Store a probe from a file of this machine. The other fields are those of `add`.

        Args:
            metadata: the JSON file beside the file of weights.
        """
        call = form_call("/api/probes", name, file, metadata, fields)
        return data((yield from answered(call, self._runner.retries)), ProbeRecord)

    @route("POST", "/api/probes/train", query=("wait",), read=job_of)
    def train(
        self,
        name: str,
        *,
        pairs: Sequence[Mapping[str, object]] | None = None,
        positives: Sequence[Text] | None = None,
        negatives: Sequence[Text] | None = None,
        layers: Literal["all"] | Sequence[int] = "all",
        site: str = "resid_post",
        method: Literal["logistic"] = "logistic",
        read: Read = "last",
        holdout: float = 0.3,
        seed: int = 0,
        special_tokens: bool = False,
        wait: bool = False,
    ) -> JobRecord:
        """Train a probe from pairs, or from two groups of texts. The job's result is the probe."""

    @route("DELETE", "/api/probes/{probe_id}")
    def delete(self, probe_id: str) -> DeletedProbe: ...


class Corpora(Noun[Mode]):
    """Many texts, and what every feature of the attached SAEs does over them."""

    @route("GET", "/api/corpora", items="corpora")
    def list(self) -> Listing[CorpusRecord, CorpusList]: ...

    @route("GET", "/api/corpora/{corpus_id}")
    def get(self, corpus_id: str) -> CorpusRecord: ...

    @route("POST", "/api/corpora", query=("wait",), read=job_of)
    def read(
        self,
        name: str,
        source: Literal["inline", "local", "huggingface"],
        *,
        texts: Sequence[Text] | None = None,
        local_path: str | None = None,
        repo_id: str | None = None,
        file_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        text_field: str = "text",
        max_tokens: int = 1_000_000,
        context: int = 128,
        examples: int = 20,
        wait: bool = False,
    ) -> JobRecord:
        """Read a corpus, or carry on one that was cut. The job's result is the corpus."""

    @route("DELETE", "/api/corpora/{corpus_id}")
    def delete(self, corpus_id: str) -> DeletedCorpus: ...


class Captures(Noun[Mode]):
    """The values of sites of the model over many texts, in files."""

    @route("GET", "/api/captures", items="captures")
    def list(self) -> Listing[CaptureRecord, CaptureList]: ...

    @route("GET", "/api/captures/{capture_id}")
    def get(self, capture_id: str) -> CaptureDetails: ...

    @route("POST", "/api/captures", query=("wait",), read=job_of)
    def read(
        self,
        name: str,
        sites: Sequence[Mapping[str, object]],
        *,
        texts: Sequence[Text] | None = None,
        messages: Sequence[Mapping[str, object]] | None = None,
        corpus_id: str | None = None,
        local_path: str | None = None,
        repo_id: str | None = None,
        file_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        text_field: str = "text",
        positions: str | Mapping[str, object] = "all",
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        interventions: Mapping[str, object] | None = None,
        max_tokens: int = 1_000_000,
        context: int = 512,
        shard_mb: int = 256,
        wait: bool = False,
    ) -> JobRecord:
        """Read texts, or carry on a capture that was cut. The job's result has the id of the capture."""

    @route("GET", "/api/captures/{capture_id}/files/{name}", read=lambda reply: reply.body)
    def file(self, capture_id: str, name: str) -> bytes:
        """The content of a file. `download` gets large files part by part."""

    @composed
    def download(self, capture_id: str, folder: str | Path) -> Steps[Path]:
        """Get the files of a capture into a folder, which has no others. Shards that are there already are not fetched
        again, so that a download that was cut goes on."""
        into = Path(folder)
        into.mkdir(parents=True, exist_ok=True)
        retries = self._runner.retries
        path = f"/api/captures/{path_part(capture_id)}"
        details = data((yield from answered(Call("GET", path), retries)), CaptureDetails)
        for file in details.files:
            target = into / Path(file.name).name
            if target.suffix != ".safetensors":
                target.unlink(missing_ok=True)  # it changes as the capture goes on
            with target.open("ab") as opened:
                while (size := opened.tell()) < file.bytes:
                    end = min(size + FILE_PART, file.bytes) - 1
                    part = Call(
                        "GET",
                        f"{path}/files/{path_part(file.name)}",
                        headers={"Range": f"bytes={size}-{end}"},
                    )
                    opened.write((yield from answered(part, retries)).body)
        return into

    @route("DELETE", "/api/captures/{capture_id}")
    def delete(self, capture_id: str) -> DeletedCapture: ...


class Lenses(Noun[Mode]):
    """Registered trained lenses, which `client.lens` reads with. A `lens_id` may be the name of the lens."""

    @route("GET", "/api/lenses", items="lenses")
    def list(self, *, limit: int = 200, offset: int = 0) -> Listing[LensRecord, LensList]: ...

    @route("GET", "/api/lenses/{lens_id}")
    def get(self, lens_id: str) -> LensRecord: ...

    @route("POST", "/api/lenses", query=("wait",), read=job_of)
    def add(
        self,
        name: str,
        source: Literal["local", "huggingface"],
        *,
        local_path: str | None = None,
        repository_id: str | None = None,
        repository_type: Literal["model", "dataset", "space"] | None = None,
        file_path: str | None = None,
        revision: str | None = None,
        hub_token: str | None = None,
        model_hint: str | None = None,
        wait: bool = False,
    ) -> JobRecord:
        """Register a trained lens of the service's machine or of the hub. The job's result is the lens."""

    @route("DELETE", "/api/lenses/{lens_id}")
    def delete(self, lens_id: str) -> DeletedLens: ...


class Profiles(Noun[Mode]):
    """Saved steering."""

    @route("GET", "/api/profiles", items="profiles")
    def list(self, *, limit: int = 200, offset: int = 0) -> Listing[ProfileRecord, ProfileList]: ...

    @composed
    def every(self) -> Steps[ProfileList]:
        """All saved profiles, in as many requests as their pages need."""
        found: ProfileRecords = []
        while True:
            page = yield from self._page(len(found))
            found += page.profiles
            if not page.profiles or len(found) >= page.total:
                return ProfileList(found, page.total, page.active_profile_id)

    @composed
    def find(self, name: str) -> Steps[ProfileRecord]:
        """The profile with this id or name.

        Raises:
            ServiceError: PROFILE_NOT_FOUND; the message names saved profiles.
        """
        names: Names = []
        while (page := (yield from self._page(len(names)))).profiles:
            for one in page.profiles:
                if name in (one.id, one.name):
                    return one
            names += [one.name for one in page.profiles]
        known = ", ".join(names[:NAMES_SHOWN]) or "none"
        why = f"no profile has the id or the name {name!r}; saved: {known}"
        raise fault("PROFILE_NOT_FOUND", why, param="profile")

    def _page(self, offset: int) -> Steps[ProfileList]:
        call = Call("GET", "/api/profiles", query={"offset": offset})
        return data((yield from answered(call, self._runner.retries)), ProfileList)

    @route("GET", "/api/profiles/active")
    def active(self) -> ProfileRecord | None: ...

    @route("GET", "/api/profiles/{profile_id}")
    def get(self, profile_id: str) -> ProfileRecord: ...

    @route("POST", "/api/profiles")
    def create(
        self,
        name: str,
        steering: Values,
        *,
        description: str | None = None,
        model_id: int | str | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        intensity: float = 1.0,
        edits: Sequence[Mapping[str, object]] | None = None,
    ) -> ProfileRecord: ...

    @route("POST", "/api/profiles/save-current")
    def save_current(self, name: str, *, description: str | None = None) -> ProfileRecord:
        """Save the live values."""

    @route("PATCH", "/api/profiles/{profile_id}")
    def change(
        self,
        profile_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        steering: Values | None = None,
        model_id: int | str | None = None,
        sae_id: str | None = None,
        layer: int | None = None,
        intensity: float | None = None,
        edits: Sequence[Mapping[str, object]] | None = None,
    ) -> ProfileRecord:
        """Replace the fields that are given; None empties a field that may be empty."""

    @route("DELETE", "/api/profiles/{profile_id}")
    def delete(self, profile_id: str) -> DeletedProfile: ...

    @route("POST", "/api/profiles/{profile_id}/activate")
    def activate(self, profile_id: str, *, apply_steering: bool = True) -> ActivatedProfile: ...

    @route("POST", "/api/profiles/{profile_id}/deactivate", query=("clear_steering",))
    def deactivate(self, profile_id: str, *, clear_steering: bool = True) -> DeactivatedProfile: ...

    @route("GET", "/api/profiles/{profile_id}/export")
    def export(self, profile_id: str) -> ProfileExport: ...

    @route("POST", "/api/profiles/import")
    def import_document(self, document: Document | ProfileExport) -> ImportedProfileRecord: ...


class Clusters(Noun[Mode]):
    """Sets of features with one dial."""

    @route("GET", "/api/clusters", items="clusters")
    def list(
        self, *, limit: int = 200, offset: int = 0
    ) -> Listing[ClusterSummary, ClusterList]: ...

    @route("POST", "/api/clusters/import", query=("on_conflict", "activate"))
    def import_document(
        self, document: Document, *, on_conflict: OnConflict = "rename", activate: bool = False
    ) -> ClusterImport:
        """Import a definition or a bundle."""

    @route("POST", "/api/clusters/{cluster_id}/activate")
    def activate(self, cluster_id: str) -> ActivatedCluster: ...

    @route("POST", "/api/clusters/{cluster_id}/deactivate")
    def deactivate(self, cluster_id: str) -> DeactivatedProfile: ...

    @route("PUT", "/api/clusters/{cluster_id}/intensity")
    def dial(
        self, cluster_id: str, intensity: float, *, reapply: bool = True
    ) -> IntensityReport: ...

    @route("PUT", "/api/clusters/active/intensity")
    def dial_active(self, intensity: float, *, reapply: bool = True) -> IntensityReport: ...

    @route("DELETE", "/api/clusters/{cluster_id}")
    def delete(self, cluster_id: str) -> DeletedProfile: ...

    @route("GET", "/api/clusters/{cluster_id}/export")
    def export(self, cluster_id: str) -> dict[str, object]: ...

    @route("GET", "/api/clusters/hub/search")
    def search_hub(
        self, q: str = "", *, base_model: str | None = None, limit: int = 30
    ) -> Listing[OfferedPack, OfferedPacks]: ...

    @route("GET", "/api/clusters/hub/{repo_id}/definitions")
    def hub_definitions(
        self, repo_id: str, *, revision: str | None = None
    ) -> Listing[PackedDefinition, PackedDefinitions]: ...

    @route("POST", "/api/clusters/hub/import")
    def import_from_hub(
        self,
        repo_id: str,
        filename: str,
        *,
        revision: str | None = None,
        activate: bool = False,
        on_conflict: OnConflict = "rename",
    ) -> ImportedItem: ...


class Circuits(Noun[Mode]):
    """Features in several layers, with edges between them."""

    @route("GET", "/api/circuits", items="circuits")
    def list(
        self, *, min_rung: int = 0, serveable: bool | None = None, limit: int = 50, offset: int = 0
    ) -> Listing[CircuitRecord, CircuitList]: ...

    @route("GET", "/api/circuits/{circuit_id}")
    def get(self, circuit_id: str) -> CircuitDetailRecord: ...

    @route("GET", "/api/circuits/active")
    def active(self, *, single: bool = False) -> CircuitRecords | CircuitRecord | None: ...

    @route("POST", "/api/circuits/import", query=("on_conflict",))
    def import_document(
        self, document: Document, *, on_conflict: OnConflict = "rename"
    ) -> ImportedCircuitRecord: ...

    @route(
        "POST",
        "/api/circuits/{circuit_id}/activate",
        query=("acknowledge_unvalidated", "allow_layer_overlap"),
    )
    def activate(
        self,
        circuit_id: str,
        *,
        acknowledge_unvalidated: bool = False,
        allow_layer_overlap: bool = False,
    ) -> ActivatedCircuit: ...

    @route("POST", "/api/circuits/{circuit_id}/deactivate")
    def deactivate(self, circuit_id: str) -> DeactivatedCircuit: ...

    @route("PUT", "/api/circuits/active/intensity")
    def dial_active(
        self, intensity: float, *, reapply: bool = True, acknowledge_unvalidated: bool = False
    ) -> RedialledCircuit: ...

    @route("DELETE", "/api/circuits/{circuit_id}")
    def delete(self, circuit_id: str) -> DeletedCircuit: ...

    @route("GET", "/api/circuits/{circuit_id}/export")
    def export(self, circuit_id: str) -> dict[str, object]: ...

    @route("GET", "/api/circuits/claims")
    def claims(self) -> Listing[ClaimedLayer, ClaimedLayers]:
        """The layers that circuits hold."""

    @route("POST", "/api/circuits/claims/release", query=("circuit_id",))
    def release_claims(self, circuit_id: str) -> ReleasedClaims: ...


class Sensing(Noun[Mode]):
    """Where the features of clusters fired together."""

    @route("GET", "/api/sensing/status")
    def status(self) -> ClusterSensingReport: ...

    @route("GET", "/api/sensing/events", items="events")
    def events(
        self, *, profile_id: str | None = None, limit: int = 50, since: str | None = None
    ) -> Listing[ClusterFiringRecord, ClusterFirings]: ...

    @route("GET", "/api/sensing/events/{event_id}")
    def event(self, event_id: int) -> ClusterFiringRecord: ...

    @route("DELETE", "/api/sensing/events")
    def clear(self, *, profile_id: str | None = None) -> DeletedFirings: ...

    @route("POST", "/api/sensing/{profile_id}/enable")
    def enable(self, profile_id: str) -> SensingChange: ...

    @route("POST", "/api/sensing/{profile_id}/disable")
    def disable(self, profile_id: str) -> SensingChange: ...

    @route("PUT", "/api/sensing/{profile_id}/config")
    def configure(self, profile_id: str, *, min_k: int | None) -> QuorumChange: ...


class CircuitSensing(Noun[Mode]):
    """Which edges of circuits fired."""

    @route("GET", "/api/circuit-sensing/status")
    def status(self) -> CircuitSensingState: ...

    @route("GET", "/api/circuit-sensing/events", items="events")
    def events(
        self,
        *,
        circuit_id: str | None = None,
        edge_key: str | None = None,
        limit: int = 50,
        since: str | None = None,
    ) -> Listing[EdgeFiringRecord, EdgeFirings]: ...

    @route("GET", "/api/circuit-sensing/events/{event_id}")
    def event(self, event_id: int) -> EdgeFiringRecord: ...

    @route("DELETE", "/api/circuit-sensing/events")
    def clear(self, *, circuit_id: str | None = None) -> DeletedFirings: ...

    @route("POST", "/api/circuit-sensing/{circuit_id}/enable")
    def enable(self, circuit_id: str) -> CircuitSensingChange: ...

    @route("POST", "/api/circuit-sensing/{circuit_id}/disable")
    def disable(self, circuit_id: str) -> CircuitSensingChange: ...


class Monitoring(Noun[Mode]):
    """Which features are active while the model writes."""

    @route("GET", "/api/monitoring")
    def get(self) -> MonitoringReport: ...

    @route("POST", "/api/monitoring/configure")
    def configure(
        self,
        *,
        enabled: bool = True,
        features: Sequence[int] | None = None,
        history_size: int = 100,
        top_k: int = 10,
    ) -> MonitoringReport: ...

    @route("POST", "/api/monitoring/enable")
    def enable(self, enabled: bool) -> MonitoringReport: ...

    @route("GET", "/api/monitoring/history", items="records")
    def history(
        self,
        *,
        limit: int = 50,
        request_id: str | None = None,
        features: str | None = None,
        rank: Rank = "value",
    ) -> Listing[MonitoredToken, MonitoringHistory]:
        """Recorded tokens, the newest first. `features` is as in `1,2,3`."""

    @route("DELETE", "/api/monitoring/history")
    def clear_history(self) -> Cleared: ...

    @route("GET", "/api/monitoring/contexts", items="contexts")
    def contexts(
        self, feature: int, *, limit: int = 10
    ) -> Listing[MonitoredContext, FeatureContexts]:
        """The contexts in which a feature was strongest."""

    @route("GET", "/api/monitoring/statistics", items="features")
    def statistics(
        self, *, features: str | None = None
    ) -> Listing[FeatureFigures, MonitoringStatistics]: ...

    @route("DELETE", "/api/monitoring/statistics")
    def clear_statistics(self) -> Cleared: ...

    @route("POST", "/api/monitoring/statistics/top", items="features")
    def top(
        self,
        k: int = 10,
        *,
        metric: Metric = "mean",
        rank: Rank = "value",
        examples: bool = False,
    ) -> Listing[FeatureFigures, TopFeatures]:
        """The features with the largest values of a figure."""


class Features(Noun[Mode]):
    """The features of an SAE, and their labels."""

    @route("GET", "/api/saes/{sae_id}/features/{index}")
    def get(self, sae_id: str, index: int, *, tokens: int = 10) -> Feature:
        """One feature, with the `tokens` that it promotes most and suppresses most."""

    @route("POST", "/api/saes/{sae_id}/features/search", items="features")
    def search(
        self,
        sae_id: str,
        query: str | None = None,
        *,
        feature_idx: int | None = None,
        by: Literal["labels", "examples", "text"] = "labels",
        text: str | None = None,
        messages: Sequence[Mapping[str, object]] | None = None,
        order: Literal["value", "share", "rarity"] = "value",
        examples: bool = False,
        limit: int = 20,
    ) -> Listing[SimilarFeature, FeatureSearch]:
        """Features by the words of their labels, near another feature, by the words at which they peak in the newest
        corpus, or by a text on which they fire."""

    @composed
    def promoting(
        self, /, sae_id: str, word: str, *, examples: bool = False, limit: int = 20
    ) -> Steps[Listing[SimilarFeature, FeatureSearch]]:
        """The features of an attached SAE that promote the tokens of a word. The first search takes some time."""
        body = {"query": word, "by": "promotes", "examples": examples, "limit": limit}
        path = f"/api/saes/{path_part(sae_id)}/features/search"
        call = Call("POST", path, {"wait": True}, body)
        found = data((yield from answered(call, self._runner.retries)), FeatureSearch)
        return Listing(found.features, found)

    @route("POST", "/api/features/contrast", query=("wait",), read=job_of)
    def begin_contrast(
        self,
        positives: Sequence[Text],
        negatives: Sequence[Text],
        *,
        sae_id: str | None = None,
        layer: int | None = None,
        pool: Literal["max", "mean", "last"] = "max",
        top: int = 20,
        holdout: float = 0.3,
        seed: int = 0,
        min_share: float = 0.0,
        special_tokens: bool = False,
        examples: bool = False,
        wait: bool = False,
    ) -> JobRecord:
        """Begin the job of a contrast. `contrast` waits for it."""

    @composed
    def contrast(
        self,
        /,
        positives: Sequence[Text],
        negatives: Sequence[Text],
        *,
        progress: bool = True,
        **fields: object,
    ) -> Steps[Listing[ContrastedFeature, Contrast]]:
        """The features that tell two groups of texts or conversations apart best. The other fields are those of
        `begin_contrast`.

        Args:
            progress: whether a bar shows how far it is.
        """
        body = {"positives": positives, "negatives": negatives, **fields}
        call = Call("POST", "/api/features/contrast", body=body)
        retries = self._runner.retries
        found = yield from job_result(call, Contrast, "contrast", retries, progress=progress)
        return Listing(found.features, found)

    @route("GET", "/api/saes/{sae_id}/labels", items="labels")
    def labels(
        self,
        sae_id: str,
        *,
        query: str | None = None,
        limit: int = 100,
        offset: int = 0,
        features: str | None = None,
    ) -> Listing[FeatureLabel, LabelPage]: ...

    @route("POST", "/api/saes/{sae_id}/labels", query=("replace",))
    def add_labels(
        self,
        sae_id: str,
        document: Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        replace: bool = False,
    ) -> ImportedLabels: ...

    @route("POST", "/api/saes/{sae_id}/labels/suggest", query=("wait",), read=job_of)
    def suggest_labels(
        self,
        sae_id: str,
        features: Sequence[int],
        endpoint: Mapping[str, object] | Literal["resident"],
        *,
        examples: int = 10,
        texts: Sequence[str] | None = None,
        seed: int = 0,
        wait: bool = False,
    ) -> JobRecord:
        """Begin the job of suggestions."""

    @route("GET", "/api/saes/{sae_id}/labels/suggestions", items="suggestions")
    def suggestions(self, sae_id: str) -> Listing[SuggestedLabel, SuggestionList]: ...

    @route("POST", "/api/saes/{sae_id}/labels/accept")
    def accept_labels(self, sae_id: str, features: Sequence[int]) -> AcceptedLabels:
        """Make labels of suggestions. A label of a person stays."""

    @route("DELETE", "/api/saes/{sae_id}/labels")
    def clear_labels(self, sae_id: str) -> Cleared: ...

    @route("DELETE", "/api/saes/{sae_id}/labels/{index}")
    def clear_label(self, sae_id: str, index: int) -> Cleared: ...


class Jobs(Noun[Mode]):
    """Work that goes on after the answer to its request."""

    @route("GET", "/api/jobs", items="jobs")
    def list(self) -> Listing[JobFacts, JobList]: ...

    @route("GET", "/api/jobs/{job_id}", read=job_of)
    def get(self, job_id: str) -> JobRecord: ...

    @composed
    def wait(self, job_id: str, *, progress: bool = True) -> Steps[JobRecord]:
        """The job, once it is done, with a progress bar meanwhile.

        Raises:
            ServiceError: the code with which the job failed.
        """
        return (yield from until_over(job_id, self._runner.retries, progress=progress))

    @route("DELETE", "/api/jobs/{job_id}", read=job_of)
    def drop(self, job_id: str) -> JobRecord:
        """Cancel a job that runs or waits, or forget one that has ended."""


class Runs(Noun[Mode]):
    """Recorded answers, which can be made again."""

    @route("GET", "/api/runs", items="runs")
    def list(self, *, limit: int = 50) -> Listing[RunSummary, RunList]: ...

    @route("GET", "/api/runs/{request_id}")
    def get(self, request_id: str) -> ShownRun: ...

    @route("DELETE", "/api/runs/{request_id}")
    def delete(self, request_id: str) -> DeletedRun: ...

    @route("POST", "/api/runs/{request_id}/replay")
    def replay(self, request_id: str) -> Replayed:
        """Make an answer again, and compare the two."""

    @route("GET", "/api/runs/export")
    def export(self) -> str:
        """Every record as JSON Lines."""

    @route("POST", "/api/runs/import")
    def import_(self, document: Mapping[str, object]) -> ImportedRuns:
        """Store the records of `document`, which is `{"runs": [...]}`."""


class Health(Noun[Mode]):
    """The health of the service. Calling it gives all parts in one answer."""

    @overload
    def __call__(self: Health[Blocking]) -> DetailedHealth: ...

    @overload
    def __call__(self: Health[Awaited]) -> Awaitable[DetailedHealth]: ...

    def __call__(self) -> object:
        return self.detailed()

    @route("GET", "/api/health")
    def live(self) -> Liveness: ...

    @route("GET", "/api/health/ready")
    def ready(self) -> Readiness: ...

    @route("GET", "/api/health/detailed")
    def detailed(self) -> DetailedHealth: ...

    @route("GET", "/api/health/gpus")
    def gpus(self) -> CardReport: ...

    @route("GET", "/api/health/inference")
    def inference(self) -> BackendReport: ...

    @route("GET", "/api/health/metrics")
    def metrics(self) -> MetricsReport: ...

    @route("GET", "/api/health/metrics/prometheus")
    def prometheus(self) -> str: ...

    @route("GET", "/api/health/circuits")
    def breakers(self) -> Listing[BreakerStatus, BreakerStatuses]: ...

    @route("POST", "/api/health/circuits/{name}/reset")
    def reset_breaker(self, name: str) -> BreakerStatus: ...

    @route("GET", "/api/health/log", items="lines")
    def log(
        self, *, after: int | None = None, level: Level = "DEBUG", limit: int = 500
    ) -> Listing[LogLine, LogLines]: ...

    @route("GET", "/api/health/version")
    def version(self) -> ServiceVersion: ...
