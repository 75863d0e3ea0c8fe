"""The settings of monitoring, of corpora, and of the sensing of clusters and circuits."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode

from steerserve.settings import checks as values
from steerserve.settings.limits import Count

Epsilon = Annotated[float, Field(ge=1e-9, le=1000)]
Floor = Annotated[float, Field(ge=0, le=1e9)]
ContextTokens = Annotated[int, Field(ge=0, le=64)]
Events = Annotated[int, Field(ge=1, le=10_000)]
Days = Annotated[float, Field(gt=0, le=3650)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]

_EPSILON = (
    "Share of its `max_activation` above which a {0} fires, unless its document says otherwise."
)
_FLOOR = "Least activation above which a {0} fires. With a floor of 0, one without a `max_activation` never fires."
_CONTEXT = (
    "Most tokens that are kept on each side of a firing of a {0}; 0 keeps no text and no tokens. A document may ask "
    "for fewer."
)
_REQUEST = "Most firings of one {0} that are recorded for one choice of a request."
_KEPT = "Most firings of one {0} that are kept; the oldest are deleted."
_DAYS = "Days for which firings of a {0} are kept."
_SERIAL = "Let every request take a slot while a {0} is armed for sensing, also where continuous batching is on."
_OVERHEAD = "Milliseconds of sensing a {0} in one choice above which a warning is logged, once a minute at most."


Endpoints = Annotated[
    list[str],
    NoDecode,
    BeforeValidator(lambda text: values.parts(text) if isinstance(text, str) else text),
    AfterValidator(lambda given: [one for one in given if values.chat_endpoint(one)]),
]


class SensingSettings(BaseSettings):
    """The settings of what is read from activations. `Settings` has them among the other settings."""

    label_endpoints: Endpoints = Field(
        default=[],
        description="OpenAI-compatible endpoints that may be asked for labels of features, separated by commas, such "
        "as `https://api.example.com/v1=EXAMPLE_KEY`: the base URL, and the environment variable with the key that is "
        "sent there; without a variable no key is sent.",
    )
    corpora_max_mb: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        default=2048,
        description="Most MiB that all corpora together take in the database, and the largest file of texts that is "
        "read from this machine. The texts are those of users; 0 keeps none, and corpora are refused.",
    )
    keep_effect_samples: bool = Field(
        default=True,
        description="Let results of `/api/effects`, which are kept in the database, have two texts of each strength "
        "as examples.",
    )
    corpora_max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        default=10_000_000, description="Most tokens that one corpus may ask for."
    )
    monitoring_contexts: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=0,
        description="How many of the last monitored tokens keep the text around them in memory, for the strongest "
        "contexts of a feature. The text is that of users; 0 keeps none.",
    )
    sensing_epsilon: Epsilon = Field(
        default=0.1, description=_EPSILON.format("member of a cluster")
    )
    sensing_theta_floor: Floor = Field(
        default=0.0, description=_FLOOR.format("member of a cluster")
    )
    sensing_context_tokens: ContextTokens = Field(
        default=16, description=_CONTEXT.format("cluster")
    )
    sensing_dedup_history: bool = Field(
        default=True,
        description="Report the firings in the beginning that a request shares with the sensed request before it only "
        "once.",
    )
    sensing_max_events_per_request: Events = Field(
        default=20, description=_REQUEST.format("cluster")
    )
    sensing_max_events_per_cluster: Count = Field(default=1000, description=_KEPT.format("cluster"))
    sensing_max_age_days: Days = Field(default=7, description=_DAYS.format("cluster"))
    sensing_force_serial: bool = Field(default=True, description=_SERIAL.format("cluster"))
    sensing_max_overhead_ms: Milliseconds = Field(
        default=5.0, description=_OVERHEAD.format("cluster")
    )
    circuit_sensing_epsilon: Epsilon = Field(
        default=0.1, description=_EPSILON.format("feature of a circuit")
    )
    circuit_sensing_theta_floor: Floor = Field(
        default=0.0, description=_FLOOR.format("feature of a circuit")
    )
    circuit_sensing_max_token_lag: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8,
        description="Most tokens between the upstream and the downstream feature of an edge that fires, unless the "
        "document of the circuit says otherwise.",
    )
    circuit_sensing_context_tokens: ContextTokens = Field(
        default=16, description=_CONTEXT.format("circuit")
    )
    circuit_sensing_max_events_per_request: Events = Field(
        default=20, description=_REQUEST.format("circuit")
    )
    circuit_sensing_max_events_per_circuit: Count = Field(
        default=1000, description=_KEPT.format("circuit")
    )
    circuit_sensing_max_age_days: Days = Field(default=7, description=_DAYS.format("circuit"))
    circuit_sensing_force_serial: bool = Field(default=True, description=_SERIAL.format("circuit"))
    circuit_sensing_max_overhead_ms: Milliseconds = Field(
        default=5.0, description=_OVERHEAD.format("circuit")
    )
