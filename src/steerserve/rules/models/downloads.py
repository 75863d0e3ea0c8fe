"""The progress of a download, and what a request for it would do again after it failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SameRequest = Literal["resume", "retry"]
"""`resume`: it goes on with the bytes that are kept. `retry`: it begins anew."""

_REFUSED = frozenset({"SAE_INCOMPATIBLE", "SAE_LOAD_FAILED", "VALIDATION_ERROR"})
"""Refusals of the content. The content of a commit cannot change, so the same request would be refused again."""


def same_request(error_code: str | None, kept_bytes: int) -> SameRequest | None:
    """What the same request would do; None where it would be refused again."""
    if error_code in _REFUSED:
        return None
    return "resume" if kept_bytes else "retry"


Phase = Literal["looking", "fetching"]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a download. Bytes that were on the disk before it began count as downloaded. `percent` is 100
    only at the end. `speed_bps` is in bytes per second, None while no bytes arrive. In the phase `looking` the hub is
    asked what the repository has, and no figure is known; in the phase `fetching` the files are fetched, then read."""

    downloaded_bytes: int
    total_bytes: int
    percent: int
    speed_bps: float | None = None
    phase: Phase = "fetching"


LOOKING = FetchProgress(0, 0, 0, None, "looking")
"""The progress of a download whose repository is being looked at."""
