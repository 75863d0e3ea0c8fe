"""The X-Service-* response headers: when each is present, and how its value is written."""

from __future__ import annotations

from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Run
from steerserve.messages import Chat
from steerserve.parts.registry import parts
from steerserve.rules.inference import fields
from steerserve.rules.steering import dial, evidence


def answer_headers(asked: Asked, run: Run, *, limit: int, is_shared: bool) -> dict[str, str]:
    """The headers that are known once a request is admitted. `is_shared` says that continuous batching is on."""
    headers = {"X-Service-Backend": run.backend}
    if asked.ignored:
        headers["X-Service-Ignored-Fields"] = fields.header_value(asked.ignored, limit)
    if asked.seed is not None:
        headers["X-Service-Seed"] = f"{asked.seed};scope={_scope(asked, is_shared)}"
    if not asked.goal.writes and run.admitted.state is None:
        headers["X-Service-Steering"] = "none"
    for name, planned in run.admitted.parts.items():
        headers |= parts()[name].headers(planned)
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


def _scope(asked: Asked, is_shared: bool) -> str:
    """Under which conditions the same seed gives the same text again."""
    if is_shared:
        return "best-effort"
    prompts = asked.request.prompts
    is_batch = len(prompts) > 1 and isinstance(prompts[0], Chat)
    return "batch-shape" if is_batch else "request"
