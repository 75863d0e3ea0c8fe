"""The answers of the health routes, as values. A number that was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.nouns.circuits.form import CircuitsHealth
from steerserve.nouns.profiles.form import ServingProfile
from steerserve.rules.form import Form
from steerserve.rules.inference.stepping import CompiledFunctions, CudaGraphs, RowSteps, SeededRows
from steerserve.rules.models.breaker import BreakerStatus
from steerserve.rules.models.nearness import Exactness
from steerserve.rules.percentiles import Percentiles
from steerserve.rules.residency.lease_status import LeaseStatus
from steerserve.rules.residency.replicas import ReplicaFigures, ReplicaSet
from steerserve.rules.residency.restart import EndedByRestart

HealthStatus = Literal["healthy", "degraded", "unhealthy"]


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the service. `message` says more about its status."""

    name: str
    status: HealthStatus
    message: str | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Liveness:
    status: HealthStatus
    version: str
    timestamp: datetime
    uptime_seconds: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """`status` is the worst status of the components. `replicas` is None where one engine process serves."""

    ready: bool
    status: HealthStatus
    version: str
    timestamp: datetime
    components: Sequence[Component]
    model_loaded: bool
    sae_attached: bool
    replicas: ReplicaFigures | None


@dataclass(frozen=True, slots=True)
class InferenceHealth:
    """The state of the queue. If the queue could not be read, `error` says why, and every other field is None."""

    backend: str | None = None
    cbm_enabled: bool | None = None
    cbm_running: bool | None = None
    queue_pending: int | None = None
    queue_max_concurrent: int | None = None
    queue_max_pending: int | None = None
    in_flight: int | None = None
    queue_waiting: int | None = None
    batch_backlog_rows: int | None = None
    estimated_wait_seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What the engine is doing, and for how long it has sent no heartbeat. `message` says more while the engine is
    stalled. `threads` is the number of threads that the engine computes with, and `most_threads` their number where no
    other process takes a processor; None where the engine does not say."""

    activity: str
    silent_seconds: float
    is_stalled: bool
    message: str | None
    threads: int | None = None
    most_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The longest turn of one kind: the request, the task, the command, or the part of a step that ran, and its
    milliseconds. `cpu_ms` is what a processor did of it: the rest waited for a processor, or for a file."""

    what: str
    ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Turns:
    """The longest turns of the two threads that serve all clients, since the start of the service and of the engine;
    the longest first. `engine` is None without an engine, and where the engine does not say."""

    event_loop: Sequence[Turn]
    engine: Sequence[Turn] | None


@dataclass(frozen=True, slots=True)
class DetailedHealth:
    """All parts of health in one answer. `errors` has the type of the exception for each block that could not be
    built. `replicas` is None where one engine process serves. `ended_by_restart` says what the last run served when it
    ended; it stays until the next restart, also when a model is loaded again. `interventions` is the number of live
    interventions."""

    status: HealthStatus
    version: str
    timestamp: datetime
    uptime_seconds: float
    components: Sequence[Component]
    circuit_breakers: Sequence[BreakerStatus] | None
    model_loaded: bool
    model_name: str | None
    model_placement: Mapping[str, object] | None
    sae_attached: bool
    sae_id: str | None
    sae_count: int
    sae_ids: Sequence[str]
    inference: InferenceHealth
    engine: EngineHealth | None
    replicas: ReplicaSet | None
    active_profile: ServingProfile | None
    interventions: int
    circuits: CircuitsHealth | None
    lease: LeaseStatus | None
    ended_by_restart: EndedByRestart | None
    turns: Turns | None
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Capabilities:
    per_request_sampling_params: bool
    per_request_profile_override: bool
    streaming: bool = True
    speculative_decoding: bool = False


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_concurrent: int
    max_pending: int
    current_pending: int


@dataclass(frozen=True, slots=True)
class FixedSampling:
    """The sampling parameters of the requests that run without a slot, and how many such requests may run."""

    default_temperature: float
    default_top_p: float
    max_queue_size: int


class BackendReport(Form, frozen=True, kw_only=True):
    """The backend that serves. Either `queue` or `cbm_config` is there, with the limits of the backend in use."""

    backend: str
    description: str
    capabilities: Capabilities
    limitations: list[str]
    queue: QueueLimits | UnsetType = UNSET
    cbm_config: FixedSampling | UnsetType = UNSET
    row_steps: RowSteps | None
    seeded_rows: SeededRows | None
    cuda_graphs: CudaGraphs | None
    compiled_functions: CompiledFunctions | None
    exactness: Exactness | None


class ServiceVersion(Form, frozen=True):
    """The version of the service."""

    version: str
    app: str


@dataclass(frozen=True, slots=True)
class CardUser:
    """A process that uses memory of a card."""

    pid: int
    used_mb: int | None


@dataclass(frozen=True, slots=True)
class CardStatus:
    """A card with its memory in MiB. The two figures of the tensor library are None if the card holds no part of the
    resident model, or if the engine did not answer in time."""

    smi_index: int
    uuid: str
    name: str
    total_mb: int
    used_mb: int
    free_mb: int
    torch_index: int | None
    torch_measured: bool
    millm_allocated_mb: int | None
    millm_reserved_mb: int | None
    processes: Sequence[CardUser]
    processes_reason: str | None
    engine_memory: str | None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of the machine in MiB. `available_mb` is what a process can take without swapping."""

    total_mb: int
    available_mb: int


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The memory of the loaded model on one device (`cuda:<index>` or `cpu`), in whole MiB, measured in the process of
    its engine. `weights_mb` is the parameters and buffers as they are held, `cache_mb` the KV cache that is allocated,
    `saes_mb` the attached SAEs. `process_mb` is all that the process holds on the device: its resident memory on the
    host, the memory of the tensor library on a card. It has other parts too. What an engine does not tell is null.
    `replica` is null where one engine process serves."""

    replica: str | None
    device: str
    weights_mb: int | None
    cache_mb: int | None
    saes_mb: int | None
    process_mb: int | None


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory of the loaded model, by replica and device."""

    model_id: int
    parts: Sequence[MemoryParts]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of the cluster with its versions, its processor, its cards and its memory. `reason` says why it did not
    answer, or why it has no cards. What a node did not tell is None."""

    node: str
    address: str
    reason: str | None
    version: str | None
    python: str | None
    torch: str | None
    cpu: str | None
    cores: int | None
    cards: Sequence[CardStatus]
    host: HostMemory | None


@dataclass(frozen=True, slots=True)
class CardReport:
    """The cards of this machine. `reason` says why there are no cards, or why some are missing. Models run in the
    memory of the `host` where there are none. `nodes` are those of the cluster on which replicas run; `nodes_reason`
    says why they are not known. `model_memory` is None without a loaded model, and if its engine did not answer in
    time."""

    read_at: datetime
    reason: str | None
    cards: Sequence[CardStatus]
    host: HostMemory
    nodes: Sequence[NodeReport]
    nodes_reason: str | None
    model_memory: ModelMemory | None


@dataclass(frozen=True, slots=True)
class CardFigures:
    """The numbers of one card."""

    index: int
    uuid: str
    name: str
    utilization: int | None
    memory_used_mb: int
    memory_total_mb: int
    temperature: int | None


SYSTEM = "system:metrics"
"""The name of the live event with the figures of the GPUs."""


@dataclass(frozen=True, slots=True)
class CardTotals:
    """The numbers of all cards together: sums, the mean utilization, and the highest temperature."""

    gpu_utilization: int | None
    gpu_memory_used_mb: int | None
    gpu_memory_total_mb: int | None
    gpu_temperature: int | None
    gpu_count: int
    gpus: Sequence[CardFigures]


@dataclass(frozen=True, slots=True)
class ReasonedCardTotals(CardTotals):
    """The numbers of all cards together, and the reason why there are no cards or why some are missing."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """The application's metrics. A number that no part of the service measures is None."""

    total_requests: int
    active_requests: int
    request_errors: int
    latency_ms: Percentiles
    time_to_first_token_ms: Percentiles
    prompt_tokens: int
    completion_tokens: int
    model_loaded: bool
    model_name: str | None
    model_load_count: int
    model_load_failures: int
    model_unload_count: int
    sae_attached: bool
    sae_id: str | None
    steering_enabled: bool
    active_features: int
    monitoring_enabled: bool
    monitored_features: int
    circuit_breaker_open: bool
    circuit_breaker_trips: int
    circuits_serving: int
    circuit_layers_served: int
    circuit_layers_composed: int
    circuit_claim_faults: int
    gpu: ReasonedCardTotals | None
    uptime_seconds: float
    timestamp: datetime
