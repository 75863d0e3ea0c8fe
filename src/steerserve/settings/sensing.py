"""The settings of monitoring, of corpora and captures, and of the sensing of clusters and circuits."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings

from steerserve.settings import checks as values
from steerserve.settings.limits import Count, Texts

Epsilon = Annotated[float, Field(ge=1e-9, le=1000)]
Floor = Annotated[float, Field(ge=0, le=1e9)]
ContextTokens = Annotated[int, Field(ge=0, le=64)]
Events = Annotated[int, Field(ge=1, le=10_000)]
Days = Annotated[float, Field(gt=0, le=3650)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]

Endpoints = Annotated[
    Texts, AfterValidator(lambda given: [one for one in given if values.chat_endpoint(one)])
]


class SensingSettings(BaseSettings, use_attribute_docstrings=True):
    """The settings of what is read from activations. `Settings` has them among the other settings."""

    label_endpoints: Endpoints = []
    """OpenAI-compatible endpoints that may be asked for labels of features, separated by commas, such as
    `https://api.example.com/v1=EXAMPLE_KEY`: the base URL, and the environment variable with the key that is sent
    there; without a variable no key is sent."""
    corpora_max_mb: Annotated[int, Field(ge=0, le=1 << 20)] = 2048
    """Most MiB that all corpora together take in the database, and the largest file of texts that is read from this
    machine. The texts are those of users; 0 keeps none, and corpora are refused."""
    keep_effect_samples: bool = True
    """Let results of `/api/effects`, which are kept in the database, have two texts of each strength as examples."""
    corpora_max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000_000
    """Most tokens that one corpus may ask for."""
    captures_max_mb: Annotated[int, Field(ge=0, le=1 << 30)] = 10_240
    """Most MiB that the files of all captures together take, in the folder `captures` of STEERSERVE_HOME. 0 keeps none,
    and captures are refused."""
    monitoring_contexts: Annotated[int, Field(ge=0, le=10_000)] = 0
    """How many of the last monitored tokens keep the text around them in memory, for the strongest contexts of a
    feature. The text is that of users; 0 keeps none."""
    sensing_epsilon: Epsilon = 0.1
    """Share of its `max_activation` above which a member of a cluster fires, unless its document says otherwise."""
    sensing_theta_floor: Floor = 0.0
    """Least activation above which a member of a cluster fires. With a floor of 0, one without a `max_activation` never
    fires."""
    sensing_context_tokens: ContextTokens = 16
    """Most tokens that are kept on each side of a firing of a cluster; 0 keeps no text and no tokens. A document may
    ask for fewer."""
    sensing_dedup_history: bool = True
    """Report the firings in the beginning that a request shares with the sensed request before it only once."""
    sensing_max_events_per_request: Events = 20
    """Most firings of one cluster that are recorded for one choice of a request."""
    sensing_max_events_per_cluster: Count = 1000
    """Most firings of one cluster that are kept; the oldest are deleted."""
    sensing_max_age_days: Days = 7
    """Days for which firings of a cluster are kept."""
    sensing_force_serial: bool = True
    """Let every request take a slot while a cluster is armed for sensing, also where continuous batching is on."""
    sensing_max_overhead_ms: Milliseconds = 5.0
    """Milliseconds of sensing a cluster in one choice above which a warning is logged, once a minute at most."""
    circuit_sensing_epsilon: Epsilon = 0.1
    """Share of its `max_activation` above which a feature of a circuit fires, unless its document says otherwise."""
    circuit_sensing_theta_floor: Floor = 0.0
    """Least activation above which a feature of a circuit fires. With a floor of 0, one without a `max_activation`
    never fires."""
    circuit_sensing_max_token_lag: Annotated[int, Field(ge=1, le=64)] = 8
    """Most tokens between the upstream and the downstream feature of an edge that fires, unless the document of the
    circuit says otherwise."""
    circuit_sensing_context_tokens: ContextTokens = 16
    """Most tokens that are kept on each side of a firing of a circuit; 0 keeps no text and no tokens. A document may
    ask for fewer."""
    circuit_sensing_max_events_per_request: Events = 20
    """Most firings of one circuit that are recorded for one choice of a request."""
    circuit_sensing_max_events_per_circuit: Count = 1000
    """Most firings of one circuit that are kept; the oldest are deleted."""
    circuit_sensing_max_age_days: Days = 7
    """Days for which firings of a circuit are kept."""
    circuit_sensing_force_serial: bool = True
    """Let every request take a slot while a circuit is armed for sensing, also where continuous batching is on."""
    circuit_sensing_max_overhead_ms: Milliseconds = 5.0
    """Milliseconds of sensing a circuit in one choice above which a warning is logged, once a minute at most."""
