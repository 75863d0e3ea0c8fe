"""The X-Service-* response headers: when each is present, and how its value is written."""

from __future__ import annotations

from urllib.parse import quote

from steerserve.control.inference.generate import Run
from steerserve.rules.inference import fields
from steerserve.rules.inference.intent import ClientIntent, EmbedIntent, GenerateIntent, ScoreIntent
from steerserve.rules.steering import dial, evidence


def of(intent: ClientIntent, run: Run, *, limit: int, is_shared: bool) -> dict[str, str]:
    """The headers that are known once a request is admitted. `is_shared` says that continuous batching is on."""
    headers = {"X-Service-Backend": run.backend}
    if intent.ignored:
        headers["X-Service-Ignored-Fields"] = fields.header_value(intent.ignored, limit)
    if not isinstance(intent, EmbedIntent) and intent.seed is not None:
        headers["X-Service-Seed"] = f"{intent.seed};scope={_scope(intent, is_shared)}"
    if not isinstance(intent, GenerateIntent):
        if run.admitted.state is None:
            headers["X-Service-Steering"] = "none"
    elif intent.constraint is not None:
        name = intent.constraint.name
        kind = "json_schema" if intent.constraint.is_schema else "json_object"
        headers["X-Service-Constrained"] = f"{kind};name={quote(name)}" if name else kind
    if run.admitted.echo is not None:
        headers["X-Service-Steering-Intensity"] = dial.echo(run.admitted.echo)
    if run.admitted.rung is not None:
        headers["X-Service-Circuit-Rung"] = evidence.header(run.admitted.rung)
    if run.admitted.state is not None:
        headers["X-Service-Steering-State"] = run.admitted.state
        headers["X-Service-Steering-Sources"] = ",".join(run.admitted.account.sources)
    return headers


CHANGED = {"X-Service-Steering-Changed": "true"}
"""What an answer of one body has beside these headers, where an operator changed the steering while it was written."""


def _scope(intent: GenerateIntent | ScoreIntent, is_shared: bool) -> str:
    """Under which conditions the same seed gives the same text again."""
    if is_shared:
        return "best-effort"
    is_batch = len(intent.prompts) > 1 and isinstance(intent.prompts[0], tuple)
    return "batch-shape" if is_batch else "request"
