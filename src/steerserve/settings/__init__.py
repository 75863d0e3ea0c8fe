"""Every setting of the service, with its name, default, bounds and a description. Settings are read once, from the
environment and `.env`.

All data is in one folder (`STEERSERVE_HOME`), unless a setting names another place for a cache or the database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from steerserve.settings import checks as values
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
    Texts,
    TimeLimit,
    read_by,
)
from steerserve.settings.replicas import ReplicaSettings
from steerserve.settings.secrets import Secrets
from steerserve.settings.sensing import SensingSettings
from steerserve.settings.stored import BatchSettings, RecordSettings


class Settings(
    Secrets, RequestLimits, BatchSettings, SensingSettings, RecordSettings, ReplicaSettings
):
    """The settings of the service. The environment variable of a setting is its name in capitals."""

    model_config = SettingsConfigDict(
        use_attribute_docstrings=True,
        env_file=".env",
        extra="ignore",
        validate_default=True,
        # error messages must not repeat a password
        hide_input_in_errors=True,
    )

    steerserve_home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("steerserve"))
    )
    """Folder of all data: database, model cache, SAE cache, lens cache."""
    model_cache_dir: Path = Path()
    """Folder of model checkpoints; by default `models` in STEERSERVE_HOME."""
    sae_cache_dir: Path = Path()
    """Folder of SAE checkpoints; by default `saes` in STEERSERVE_HOME."""
    lens_cache_dir: Path = Path()
    """Folder of trained lenses from the hub; by default `lenses` in STEERSERVE_HOME."""
    local_paths: Annotated[list[Path] | None, NoDecode, read_by(values.folders)] = None
    """Folders of this machine, separated by colons, that requests may name in `local_path`. Without this setting these
    are all folders outside the system folders, and none where API_KEYS is set. The files of the service itself are
    never read for a request."""
    allow_remote_code: bool | None = None
    """Whether requests may register and load models with `trust_remote_code`, whose Python files then run with the
    rights of the service. Without this setting they may only where HOST is a loopback address and API_KEYS is not
    set."""
    host: str = "127.0.0.1"
    """Address to listen on. Without API_KEYS the service has no login: set 0.0.0.0 only on a trusted network."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen on."""
    cors_origins: Annotated[Texts, AfterValidator(values.origins)] = Field(default=[])
    """Web origins that may call the service from a browser, separated by commas; `*` allows all."""
    allowed_hosts: Annotated[Texts, AfterValidator(values.hosts)] = Field(default=[])
    """Further host names that the Host header may have. While HOST is a loopback address, every request must name this
    machine or one of these hosts; otherwise only requests of browsers must."""
    trusted_proxies: Annotated[Texts, AfterValidator(values.networks)] = Field(default=[])
    """Addresses and networks of the proxies before the service, such as `10.0.0.0/8`, separated by commas. In their
    requests, the client is the rightmost address of `X-Forwarded-For` that is no such proxy: the log names it, and
    clients without keys take turns by it."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines: one object per line."""
    demo: bool = False
    """Register the bundled demo model and its SAEs at start, load the model and attach an SAE."""
    demo_model: Annotated[Path | None, read_by(values.checkpoint)] = None
    """Folder of a checkpoint on this machine, which DEMO registers and loads in the place of the bundled model."""
    demo_saes: Annotated[list[Path], NoDecode, read_by(values.present)] = Field(default=[])
    """Folders or files of SAEs of DEMO_MODEL on this machine, separated by colons. The first is attached at the layer
    that it names."""
    auto_load_model: str | None = None
    """Name of a registered model that is loaded at start."""
    hf_endpoint: Annotated[str, AfterValidator(values.hub_endpoint)] = "https://huggingface.co"
    """Address of the model hub."""
    max_download_workers: Annotated[int, Field(ge=1, le=64)] = 2
    """Downloads that run at once; the next waits."""
    download_stall_timeout: TimeLimit = 60.0
    """Seconds in which a download must receive 1 KiB per second, or the attempt is given up."""
    download_attempts: Count = 3
    """Attempts of a download, each going on where the last one ended."""
    disk_reserve_mb: Mebibytes = 1024
    """Disk space in MiB that a download, an import and a capture must leave free."""
    max_stored_documents: Count = 2000
    """Most profiles, clusters, circuits, vectors, probes, effects and trained lenses that are stored, in all."""
    stored_documents_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 256
    """Most MiB that the stored profiles, clusters, circuits, vectors, probes, effects and trained lenses have."""
    hub_answer_wait_s: Patience = 0.7
    """Seconds that a request for the download of an SAE waits for what the hub says about the repository. Then it is
    answered 202, and the record says how the download goes on."""
    hub_breaker_failures: Count = 5
    """Failed calls in a row after which the service stops calling the model hub."""
    hub_breaker_recovery_s: Seconds = 60
    """Seconds until the service then calls the model hub again."""
    torch_threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the engine's tensor library; 0 takes the physical cores that it may use."""

    max_concurrent_requests: Count = 8
    """Generation requests that hold a slot of the running batch at once, for each replica of the model."""
    max_pending_requests: CountOrNone = 64
    """Requests that may wait for a slot; the next is refused with 503."""
    queue_duration_window: Count = 50
    """Number of latest requests from whose durations the wait in the queue is estimated."""
    graceful_unload_timeout: Patience = 30.0
    """Seconds an unload waits for requests in flight before it ends them."""
    graceful_shutdown_timeout: Patience = 30.0
    """Seconds a stop (SIGTERM, Ctrl-C) waits for requests in flight."""
    load_timeout: TimeLimit = 1800.0
    """Seconds a model load may take before its engine is ended."""
    engine_stall_timeout: TimeLimit = 300.0
    """Seconds without a heartbeat of the engine after which the engine is ended. Each layer of a pass is a heartbeat;
    of a GGUF model, each pass."""
    default_max_tokens: Count = 512
    """Most completion tokens of a request that sets no limit, lowered to the rest of the context."""
    transformers_min_context: Count = 4096
    """Context in tokens that must fit beside the weights for a load to be accepted, lowered to the model's own
    maximum."""
    kv_cache_mb: Mebibytes = 0
    """Memory for the KV cache in MiB; 0 takes a third of the memory that is free after the load."""
    transformers_cuda_context_mb: Mebibytes = 500
    """Memory in MiB that the driver takes on each card of a model; the check before a load counts it."""
    transformers_idle_cache_release_s: Annotated[float, Field(ge=-DAY, le=DAY)] = 5.0
    """Seconds without work after which the engine gives unused card memory back. 0 means at once, and a negative number
    never."""
    gguf_context_length: CountOrNone = 32_768
    """Largest context in tokens of a GGUF model; 0 takes the context that the file names."""
    gguf_kv_cache_type: Literal["f16", "q8_0"] = "f16"
    """Type of a GGUF model's KV cache."""
    gguf_tensor_split: Annotated[str, AfterValidator(values.tensor_split)] = ""
    """Proportions in which a GGUF model is spread over the cards, one for each, separated by commas."""
    gguf_enable_embeddings: bool = True
    """Load GGUF models so that they can embed too."""
    gguf_server_bin: Annotated[str | None, AfterValidator(values.program)] = None
    """Path of a `llama-server` program that serves GGUF models instead of the bundled engine."""
    prefix_cache_mb: Annotated[int | None, Field(ge=0, le=MIB_MAXIMUM)] = None
    """Memory in MiB, beside the KV cache, for prompts and conversations that are kept for later requests which begin
    alike; by default a quarter of the KV cache, and 0 keeps none."""
    max_step_ms: Annotated[float, Field(gt=0, le=60_000)] = 200.0
    """Milliseconds that a step with a part of a long prompt takes about, while other requests write. Where writing
    alone takes more than half of that time, the part takes as long as the writing. Such a step takes five times as long
    where all requests are one client's and none that writes is streamed."""
    seeded_rows: Literal["auto", "shared", "apart"] = "auto"
    """How seeded requests are stepped: `shared` with all other requests where a check at the load finds that the others
    change no bit, `apart` each for itself; `auto` is `shared` on the processor and `apart` on cards."""
    cuda_graphs: Literal["auto", "off", "on"] = "auto"
    """Whether a card records decode passes and replays them. `on` prepares passes so on a processor too, which gains
    nothing."""
    enable_continuous_batching: bool = False
    """Let requests with the server's own sampling parameters (CBM_DEFAULT_*) run without a slot."""
    cbm_default_temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Temperature of the requests that run without a slot."""
    cbm_default_top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    """`top_p` of the requests that run without a slot."""
    cbm_max_queue_size: Count = 256
    """Requests that may run without a slot at once, for each replica of the model."""
    cbm_force_serial_monitoring: bool = False
    """Let every request take a slot while features are monitored, also where continuous batching is on."""
    cluster_intensity_min: Annotated[float, Field(ge=0, le=2)] = 0.5
    """Intensity that `steering_intensity: min` means where no range is declared."""
    cluster_intensity_max: Annotated[float, Field(ge=0, le=2)] = 1.5
    """Intensity that `steering_intensity: max` means where no range is declared."""
    circuit_intensity_min: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Lowest intensity of a circuit other than 0, and what `steering_intensity: min` means where no range is
    declared."""
    circuit_intensity_max: Annotated[float, Field(ge=0, le=2)] = 2.0
    """Highest intensity of a circuit, and what `steering_intensity: max` means where no range is declared."""
    cluster_hub_tag: Annotated[str, Field(min_length=1, max_length=100)] = (
        "mistudio-cluster-definition"
    )
    """Tag of the repositories of the hub that are packs of clusters."""
    cluster_hub_cache_ttl_s: Patience = 300.0
    """Seconds for which an answer of the hub about packs of clusters is used again; 0 asks each time."""
    sae_activations_max_top_k: Count = 64
    """Largest `top_k` of the activations of an answer."""
    sae_activations_max_entries: Count = 65_536
    """Largest number of positions times `top_k` that one request may ask for."""
    activations_raw_max_mb: Annotated[int, Field(ge=1, le=1024)] = 32
    """Most MiB of raw activations that one request may ask for, before they are encoded."""
    activations_raw_all_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 256
    """Most MiB of raw activations that all requests of an engine may ask for at once."""
    multisae_attach_dtype: Literal["float16", "bfloat16", "float32", "model", "stored"] = "float16"
    """Type in which the matrices of SAEs that are attached as a set are kept; `model` is the type of the model,
    `stored` the type in each file."""
    multisae_vram_envelope_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 4096
    """Memory in MiB of all attached SAEs above which answers warn; no request is refused because of it."""
    structured_output_grammar_cache: Count = 32
    """Compiled response formats that the engine keeps."""

    lease_default_ttl_seconds: LeaseSeconds = 7200
    """Seconds of a lease whose request names no time, lowered to LEASE_MAX_TTL_SECONDS."""
    lease_max_ttl_seconds: LeaseSeconds = 7200
    """Longest time a lease may be granted or renewed for, in seconds."""
    lease_holder_max_chars: Count = 128
    """Most characters in the holder of a lease."""
    lease_reason_max_chars: Count = 512
    """Most characters in the reason of a lease."""
    lease_ended_memory: Count = 64
    """Number of ended leases whose ids are remembered, so that such an id is answered LEASE_EXPIRED."""

    retry_after_queue_default_s: Seconds = 5
    """Retry-After of a full queue without an estimate."""
    retry_after_max_s: Seconds = 60
    """Largest Retry-After of a full queue."""
    retry_after_load_s: Seconds = 15
    """Retry-After while a model loads."""
    retry_after_unload_s: Seconds = 5
    """Retry-After while a model unloads."""
    retry_after_not_loaded_s: Seconds = 30
    """Retry-After when no model is loaded."""
    retry_after_memory_s: Seconds = 30
    """Retry-After when memory does not suffice."""
    retry_after_readiness_s: Seconds = 5
    """Retry-After while the service is not ready."""
    retry_after_database_s: Annotated[int | None, Field(ge=1, le=3600)] = None
    """Retry-After while the database cannot be used; without it RETRY_AFTER_FALLBACK_S."""
    retry_after_connections_s: Seconds = 5
    """Retry-After while all connections of the service are in use."""
    retry_after_fallback_s: Seconds = 10
    """Retry-After of any other 503."""

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
