"""What a request for a download would do again after the download failed."""

from __future__ import annotations

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
