"""What a restart of the service ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndedByRestart:
    """What the last run served and this run does not serve: the names of the models that were loaded, and the ids of
    the SAEs that were attached and of the circuits that served. The live steering values, the lock and the lease of
    these models are gone too."""

    models: tuple[str, ...]
    sae_ids: tuple[str, ...]
    circuit_ids: tuple[str, ...]
