"""Every setting of the service, with its name, default, bounds and a description. Settings are read once, from the
environment and `.env`.

All data is in one folder (`STEERSERVE_HOME`), unless a setting names another place for a cache or the database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from steerserve.settings import checks as values
from steerserve.settings.batches import BatchSettings
from steerserve.settings.limits import (
    DAY,
    MIB_MAXIMUM,
    Count,
    CountOrNone,
    LeaseSeconds,
    Mebibytes,
    Patience,
    RequestLimits,
    Seconds,
    TimeLimit,
)
from steerserve.settings.replicas import ReplicaSettings
from steerserve.settings.runs import RecordSettings
from steerserve.settings.secrets import Secrets
from steerserve.settings.sensing import SensingSettings

Texts = Annotated[
    list[str],
    NoDecode,
    BeforeValidator(lambda text: values.parts(text) if isinstance(text, str) else text),
]


Folders = Annotated[
    list[Path] | None,
    NoDecode,
    BeforeValidator(lambda text: values.folders(text) if isinstance(text, str) else text),
]


class Settings(
    Secrets, RequestLimits, BatchSettings, SensingSettings, RecordSettings, ReplicaSettings
):
    """The settings of the service. The environment variable of a setting is its name in capitals."""

    model_config = SettingsConfigDict(
        env_file=".env",
        extra="ignore",
        validate_default=True,
        # error messages must not repeat a password
        hide_input_in_errors=True,
    )

    steerserve_home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("steerserve")),
        description="Folder of all data: database, model cache, SAE cache, lens cache.",
    )
    model_cache_dir: Path = Field(
        default=Path(),
        description="Folder of model checkpoints; by default `models` in STEERSERVE_HOME.",
    )
    sae_cache_dir: Path = Field(
        default=Path(),
        description="Folder of SAE checkpoints; by default `saes` in STEERSERVE_HOME.",
    )
    lens_cache_dir: Path = Field(
        default=Path(),
        description="Folder of trained lenses from the hub; by default `lenses` in STEERSERVE_HOME.",
    )
    local_paths: Folders = Field(
        default=None,
        description="Folders of this machine, separated by colons, that requests may name in `local_path`. Without "
        "this setting these are all folders outside the system folders, and none where API_KEYS is set. The files of "
        "the service itself are never read for a request.",
    )
    allow_remote_code: bool | None = Field(
        default=None,
        description="Whether requests may register and load models with `trust_remote_code`, whose Python files then "
        "run with the rights of the service. Without this setting they may only where HOST is a loopback address and "
        "API_KEYS is not set.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. Without API_KEYS the service has no login: set 0.0.0.0 only on a trusted "
        "network.",
    )
    port: int = Field(default=8000, ge=1, le=65535, description="Port to listen on.")
    cors_origins: Annotated[Texts, AfterValidator(values.origins)] = Field(
        default=[],
        description="Web origins that may call the service from a browser, separated by commas; `*` allows all.",
    )
    allowed_hosts: Annotated[Texts, AfterValidator(values.hosts)] = Field(
        default=[],
        description="Further host names that the Host header may have. While HOST is a loopback address, every request "
        "must name this machine or one of these hosts; otherwise only requests of browsers must.",
    )
    trusted_proxies: Annotated[Texts, AfterValidator(values.networks)] = Field(
        default=[],
        description="Addresses and networks of the proxies before the service, such as `10.0.0.0/8`, separated by "
        "commas. In their requests, the client is the rightmost address of `X-Forwarded-For` that is no such proxy: "
        "the log names it, and clients without keys take turns by it.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        default="console",
        description="`console` for people, `json` for machines: one object per line.",
    )
    demo: bool = Field(
        default=False,
        description="Register the bundled demo model and its SAEs at start, load the model and attach an SAE.",
    )
    demo_model: Annotated[
        Path | None,
        BeforeValidator(lambda text: values.checkpoint(text) if isinstance(text, str) else text),
    ] = Field(
        default=None,
        description="Folder of a checkpoint on this machine, which DEMO registers and loads in the place of the "
        "bundled model.",
    )
    demo_saes: Annotated[
        list[Path],
        NoDecode,
        BeforeValidator(lambda text: values.present(text) if isinstance(text, str) else text),
    ] = Field(
        default=[],
        description="Folders or files of SAEs of DEMO_MODEL on this machine, separated by colons. The first is "
        "attached at the layer that it names.",
    )
    auto_load_model: str | None = Field(
        default=None, description="Name of a registered model that is loaded at start."
    )
    hf_endpoint: Annotated[str, AfterValidator(values.hub_endpoint)] = Field(
        default="https://huggingface.co", description="Address of the model hub."
    )
    max_download_workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, description="Downloads that run at once; the next waits."
    )
    download_stall_timeout: TimeLimit = Field(
        default=60.0,
        description="Seconds in which a download must receive 1 KiB per second, or the attempt is given up.",
    )
    download_attempts: Count = Field(
        default=3, description="Attempts of a download, each going on where the last one ended."
    )
    disk_reserve_mb: Mebibytes = Field(
        default=1024,
        description="Disk space in MiB that a download and an import must leave free.",
    )
    max_stored_documents: Count = Field(
        default=2000,
        description="Most profiles, clusters, circuits, vectors, probes, effects and trained lenses that are stored, "
        "in all.",
    )
    stored_documents_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = Field(
        default=256,
        description="Most MiB that the stored profiles, clusters, circuits, vectors, probes, effects and trained "
        "lenses have.",
    )
    hub_answer_wait_s: Patience = Field(
        default=0.7,
        description="Seconds that a request for the download of an SAE waits for what the hub says about the "
        "repository. Then it is answered 202, and the record says how the download goes on.",
    )
    hub_breaker_failures: Count = Field(
        default=5,
        description="Failed calls in a row after which the service stops calling the model hub.",
    )
    hub_breaker_recovery_s: Seconds = Field(
        default=60, description="Seconds until the service then calls the model hub again."
    )
    torch_threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0,
        description="Threads of the engine's tensor library; 0 takes the physical cores that it may use.",
    )

    max_concurrent_requests: Count = Field(
        default=8,
        description="Generation requests that hold a slot of the running batch at once, for each replica of the model.",
    )
    max_pending_requests: CountOrNone = Field(
        default=64,
        description="Requests that may wait for a slot; the next is refused with 503.",
    )
    queue_duration_window: Count = Field(
        default=50,
        description="Number of latest requests from whose durations the wait in the queue is estimated.",
    )
    graceful_unload_timeout: Patience = Field(
        default=30.0,
        description="Seconds an unload waits for requests in flight before it ends them.",
    )
    graceful_shutdown_timeout: Patience = Field(
        default=30.0,
        description="Seconds a stop (SIGTERM, Ctrl-C) waits for requests in flight.",
    )
    load_timeout: TimeLimit = Field(
        default=1800.0,
        description="Seconds a model load may take before its engine is ended.",
    )
    engine_stall_timeout: TimeLimit = Field(
        default=300.0,
        description="Seconds without a heartbeat of the engine after which the engine is ended. Each layer of a pass "
        "is a heartbeat; of a GGUF model, each pass.",
    )
    default_max_tokens: Count = Field(
        default=512,
        description="Most completion tokens of a request that sets no limit, lowered to the rest of the context.",
    )
    transformers_min_context: Count = Field(
        default=4096,
        description="Context in tokens that must fit beside the weights for a load to be accepted, "
        "lowered to the model's own maximum.",
    )
    kv_cache_mb: Mebibytes = Field(
        default=0,
        description="Memory for the KV cache in MiB; 0 takes a third of the memory that is free after the load.",
    )
    transformers_cuda_context_mb: Mebibytes = Field(
        default=500,
        description="Memory in MiB that the driver takes on each card of a model; the check before a load counts it.",
    )
    transformers_idle_cache_release_s: float = Field(
        default=5.0,
        ge=-DAY,
        le=DAY,
        description="Seconds without work after which the engine gives unused card memory back. 0 means at once, and a "
        "negative number never.",
    )
    gguf_context_length: CountOrNone = Field(
        default=32_768,
        description="Largest context in tokens of a GGUF model; 0 takes the context that the file names.",
    )
    gguf_kv_cache_type: Literal["f16", "q8_0"] = Field(
        default="f16", description="Type of a GGUF model's KV cache."
    )
    gguf_tensor_split: Annotated[str, AfterValidator(values.tensor_split)] = Field(
        default="",
        description="Proportions in which a GGUF model is spread over the cards, one for each, separated by commas.",
    )
    gguf_enable_embeddings: bool = Field(
        default=True, description="Load GGUF models so that they can embed too."
    )
    gguf_server_bin: Annotated[str | None, AfterValidator(values.program)] = Field(
        default=None,
        description="Path of a `llama-server` program that serves GGUF models instead of the bundled engine.",
    )
    prefix_cache_mb: int | None = Field(
        default=None,
        ge=0,
        le=MIB_MAXIMUM,
        description="Memory in MiB, beside the KV cache, for prompts and conversations that are kept for later "
        "requests which begin alike; by default a quarter of the KV cache, and 0 keeps none.",
    )
    max_step_ms: float = Field(
        default=200.0,
        gt=0,
        le=60_000,
        description="Milliseconds that a step with a part of a long prompt takes about, while other requests write. "
        "Where writing alone takes more than half of that time, the part takes as long as the writing. Such a step "
        "takes five times as long where all requests are one client's and none that writes is streamed.",
    )
    seeded_rows: Literal["auto", "shared", "apart"] = Field(
        default="auto",
        description="How seeded requests are stepped: `shared` with all other requests where a check at the load finds "
        "that the others change no bit, `apart` each for itself; `auto` is `shared` on the processor and `apart` on "
        "cards.",
    )
    cuda_graphs: Literal["auto", "off", "on"] = Field(
        default="auto",
        description="Whether a card records decode passes and replays them. `on` prepares passes so on a processor "
        "too, which gains nothing.",
    )
    enable_continuous_batching: bool = Field(
        default=False,
        description="Let requests with the server's own sampling parameters (CBM_DEFAULT_*) run without a slot.",
    )
    cbm_default_temperature: float = Field(
        default=0.0, ge=0, le=2, description="Temperature of the requests that run without a slot."
    )
    cbm_default_top_p: float = Field(
        default=1.0, ge=0, le=1, description="`top_p` of the requests that run without a slot."
    )
    cbm_max_queue_size: Count = Field(
        default=256,
        description="Requests that may run without a slot at once, for each replica of the model.",
    )
    cbm_force_serial_monitoring: bool = Field(
        default=False,
        description="Let every request take a slot while features are monitored, also where continuous batching is on.",
    )
    cluster_intensity_min: float = Field(
        default=0.5,
        ge=0,
        le=2,
        description="Intensity that `steering_intensity: min` means where no range is declared.",
    )
    cluster_intensity_max: float = Field(
        default=1.5,
        ge=0,
        le=2,
        description="Intensity that `steering_intensity: max` means where no range is declared.",
    )
    circuit_intensity_min: float = Field(
        default=0.0,
        ge=0,
        le=2,
        description="Lowest intensity of a circuit other than 0, and what `steering_intensity: min` means where no "
        "range is declared.",
    )
    circuit_intensity_max: float = Field(
        default=2.0,
        ge=0,
        le=2,
        description="Highest intensity of a circuit, and what `steering_intensity: max` means where no range is "
        "declared.",
    )
    cluster_hub_tag: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        default="mistudio-cluster-definition",
        description="Tag of the repositories of the hub that are packs of clusters.",
    )
    cluster_hub_cache_ttl_s: Patience = Field(
        default=300.0,
        description="Seconds for which an answer of the hub about packs of clusters is used again; 0 asks each time.",
    )
    sae_activations_max_top_k: Count = Field(
        default=64, description="Largest `top_k` of the activations of an answer."
    )
    sae_activations_max_entries: Count = Field(
        default=65_536,
        description="Largest number of positions times `top_k` that one request may ask for.",
    )
    multisae_attach_dtype: Literal["float16", "bfloat16", "float32", "model", "stored"] = Field(
        default="float16",
        description="Type in which the matrices of SAEs that are attached as a set are kept; `model` is the type of "
        "the model, `stored` the type in each file.",
    )
    multisae_vram_envelope_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = Field(
        default=4096,
        description="Memory in MiB of all attached SAEs above which answers warn; no request is refused because of it.",
    )
    structured_output_grammar_cache: Count = Field(
        default=32, description="Compiled response formats that the engine keeps."
    )

    lease_default_ttl_seconds: LeaseSeconds = Field(
        default=7200,
        description="Seconds of a lease whose request names no time, lowered to LEASE_MAX_TTL_SECONDS.",
    )
    lease_max_ttl_seconds: LeaseSeconds = Field(
        default=7200, description="Longest time a lease may be granted or renewed for, in seconds."
    )
    lease_holder_max_chars: Count = Field(
        default=128, description="Most characters in the holder of a lease."
    )
    lease_reason_max_chars: Count = Field(
        default=512, description="Most characters in the reason of a lease."
    )
    lease_ended_memory: Count = Field(
        default=64,
        description="Number of ended leases whose ids are remembered, so that such an id is answered LEASE_EXPIRED.",
    )

    retry_after_queue_default_s: Seconds = Field(
        default=5, description="Retry-After of a full queue without an estimate."
    )
    retry_after_max_s: Seconds = Field(
        default=60, description="Largest Retry-After of a full queue."
    )
    retry_after_load_s: Seconds = Field(default=15, description="Retry-After while a model loads.")
    retry_after_unload_s: Seconds = Field(
        default=5, description="Retry-After while a model unloads."
    )
    retry_after_not_loaded_s: Seconds = Field(
        default=30, description="Retry-After when no model is loaded."
    )
    retry_after_memory_s: Seconds = Field(
        default=30, description="Retry-After when memory does not suffice."
    )
    retry_after_readiness_s: Seconds = Field(
        default=5, description="Retry-After while the service is not ready."
    )
    retry_after_database_s: int | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="Retry-After while the database cannot be used; without it RETRY_AFTER_FALLBACK_S.",
    )
    retry_after_connections_s: Seconds = Field(
        default=5, description="Retry-After while all connections of the service are in use."
    )
    retry_after_fallback_s: Seconds = Field(default=10, description="Retry-After of any other 503.")

    @model_validator(mode="after")
    def _check_range(self) -> Settings:
        if self.cluster_intensity_min > self.cluster_intensity_max:
            raise ValueError("CLUSTER_INTENSITY_MIN is above CLUSTER_INTENSITY_MAX")
        if self.circuit_intensity_min > self.circuit_intensity_max:
            raise ValueError("CIRCUIT_INTENSITY_MIN is above CIRCUIT_INTENSITY_MAX")
        return self

    @model_validator(mode="after")
    def _check_demo(self) -> Settings:
        if self.demo_model is not None and not self.demo_saes:
            raise ValueError("DEMO_MODEL (`demo --model`) needs DEMO_SAES (`demo --sae`): its SAE")
        if self.demo_saes and self.demo_model is None:
            raise ValueError(
                "DEMO_SAES (`demo --sae`) needs DEMO_MODEL (`demo --model`): their model"
            )
        return self

    @model_validator(mode="after")
    def _derive(self) -> Settings:
        self.steerserve_home = self.steerserve_home.expanduser().absolute()
        for name, folder in (
            ("model_cache_dir", "models"),
            ("sae_cache_dir", "saes"),
            ("lens_cache_dir", "lenses"),
        ):
            named: Path = getattr(self, name)
            is_named = named != Path()
            place = named.expanduser().absolute() if is_named else self.steerserve_home / folder
            setattr(self, name, place)
        if not self.database_url:
            file = self.steerserve_home / "steerserve.db"
            self.database_url = values.database_url(f"sqlite:///{file}")
        return self

    @property
    def may_run_remote_code(self) -> bool:
        """Whether a model may be registered and loaded with `trust_remote_code`."""
        if self.allow_remote_code is not None:
            return self.allow_remote_code
        return self.is_loopback and not self.api_keys

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the service without a key."""
        return not self.is_loopback and not self.api_keys

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
