"""Which requests change something, and what the log calls the change and its object."""

from __future__ import annotations

import re
from collections.abc import Mapping

ACTIONS: dict[tuple[str, str], str] = {
    ("POST", "/api/models"): "model_add",
    ("DELETE", "/api/models/{model_id}"): "model_delete",
    ("POST", "/api/models/{model_id}/cancel"): "model_cancel",
    ("POST", "/api/models/{model_id}/load"): "model_load",
    ("POST", "/api/models/{model_id}/unload"): "model_unload",
    ("POST", "/api/models/{model_id}/lock"): "model_lock",
    ("POST", "/api/models/{model_id}/unlock"): "model_unlock",
    ("PUT", "/api/models/{model_id}/replicas"): "replicas_resize",
    ("POST", "/api/models/{model_id}/replicas/{name}/drain"): "replica_drain",
    ("POST", "/api/models/{model_id}/replicas/{name}/replace"): "replica_replace",
    ("POST", "/api/models/{model_id}/lease"): "lease_grant",
    ("POST", "/api/models/{model_id}/lease/renew"): "lease_renew",
    ("DELETE", "/api/models/{model_id}/lease"): "lease_release",
    ("POST", "/api/saes/download"): "sae_add",
    ("DELETE", "/api/saes/{sae_id}"): "sae_delete",
    ("POST", "/api/saes/{sae_id}/cancel"): "sae_cancel",
    ("POST", "/api/saes/{sae_id}/attach"): "sae_attach",
    ("POST", "/api/saes/attach-set"): "sae_attach_set",
    ("POST", "/api/saes/{sae_id}/detach"): "sae_detach",
    ("POST", "/api/saes/steering"): "steering_set",
    ("POST", "/api/saes/steering/batch"): "steering_set",
    ("POST", "/api/saes/steering/enable"): "steering_enable",
    ("POST", "/api/saes/steering/disable"): "steering_disable",
    ("DELETE", "/api/saes/steering/{index}"): "steering_remove",
    ("DELETE", "/api/saes/steering"): "steering_clear",
    ("PUT", "/api/interventions"): "interventions_set",
    ("DELETE", "/api/interventions"): "interventions_clear",
    ("DELETE", "/api/jobs/{job_id}"): "job_delete",
    ("POST", "/api/health/circuits/{name}/reset"): "breaker_reset",
}
"""Method and route -> the name of the change. Nouns with a folder name theirs there."""

QUESTIONS = frozenset(
    {
        "/api/models/preview",
        "/api/saes/preview",
        "/api/compare",
        "/api/tokenize",
        "/api/detokenize",
    }
)
"""Routes under /api whose requests have a body and change nothing."""

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
