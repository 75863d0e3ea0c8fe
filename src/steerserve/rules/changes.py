"""Which requests change something, and what the log calls the change and its object."""

from __future__ import annotations

import re
from collections.abc import Mapping

ACTIONS: dict[tuple[str, str], str] = {
    ("POST", "/api/health/circuits/{name}/reset"): "breaker_reset",
}
"""Method and route -> the name of the change, for routes of no noun. Nouns name theirs in their folders."""

QUESTIONS = frozenset({"/api/compare", "/api/tokenize", "/api/detokenize"})
"""Routes of no noun under /api whose requests have a body and change nothing."""

CLIENT_LEFT = 499
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def object_of(parts: Mapping[str, object]) -> dict[str, str]:
    """The parts of a path that name the object of a change. A part that no id looks like is not repeated."""
    return {name: text if _ID.fullmatch(text := str(part)) else "?" for name, part in parts.items()}


def result_of(status: int, code: str | None) -> str:
    """How a change ended: the code of its refusal, `begun` where it goes on after the answer, or `done`."""
    if code is not None:
        return code
    if status == CLIENT_LEFT:
        return "client_left"
    return "begun" if status == 202 else "done" if status < 400 else str(status)
