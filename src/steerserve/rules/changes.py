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
    ("POST", "/api/saes/{sae_id}/labels"): "labels_import",
    ("DELETE", "/api/saes/{sae_id}/labels"): "labels_delete",
    ("DELETE", "/api/saes/{sae_id}/labels/{index}"): "label_delete",
    ("POST", "/api/saes/steering"): "steering_set",
    ("POST", "/api/saes/steering/batch"): "steering_set",
    ("POST", "/api/saes/steering/enable"): "steering_enable",
    ("POST", "/api/saes/steering/disable"): "steering_disable",
    ("DELETE", "/api/saes/steering/{index}"): "steering_remove",
    ("DELETE", "/api/saes/steering"): "steering_clear",
    ("PUT", "/api/interventions"): "interventions_set",
    ("DELETE", "/api/interventions"): "interventions_clear",
    ("POST", "/api/monitoring/configure"): "monitoring_configure",
    ("POST", "/api/saes/monitoring"): "monitoring_configure",
    ("POST", "/api/monitoring/enable"): "monitoring_enable",
    ("DELETE", "/api/monitoring/history"): "monitoring_delete",
    ("DELETE", "/api/monitoring/statistics"): "monitoring_reset",
    ("POST", "/api/profiles"): "profile_add",
    ("POST", "/api/profiles/save-current"): "profile_add",
    ("POST", "/api/profiles/import"): "profile_import",
    ("PATCH", "/api/profiles/{profile_id}"): "profile_change",
    ("DELETE", "/api/profiles/{profile_id}"): "profile_delete",
    ("POST", "/api/profiles/{profile_id}/activate"): "profile_activate",
    ("POST", "/api/profiles/{profile_id}/deactivate"): "profile_deactivate",
    ("POST", "/api/clusters/import"): "cluster_import",
    ("POST", "/api/clusters/hub/import"): "cluster_import",
    ("PUT", "/api/clusters/active/intensity"): "cluster_dial",
    ("PUT", "/api/clusters/{cluster_id}/intensity"): "cluster_dial",
    ("POST", "/api/clusters/{cluster_id}/activate"): "cluster_activate",
    ("POST", "/api/clusters/{cluster_id}/deactivate"): "cluster_deactivate",
    ("DELETE", "/api/clusters/{cluster_id}"): "cluster_delete",
    ("POST", "/api/vectors"): "vector_add",
    ("DELETE", "/api/vectors/{vector_id}"): "vector_delete",
    ("POST", "/api/probes"): "probe_add",
    ("DELETE", "/api/probes/{probe_id}"): "probe_delete",
    ("DELETE", "/api/sensing/events"): "sensing_delete",
    ("POST", "/api/sensing/{profile_id}/enable"): "sensing_enable",
    ("POST", "/api/sensing/{profile_id}/disable"): "sensing_disable",
    ("PUT", "/api/sensing/{profile_id}/config"): "sensing_configure",
    ("DELETE", "/api/circuit-sensing/events"): "circuit_sensing_delete",
    ("POST", "/api/circuit-sensing/{circuit_id}/enable"): "circuit_sensing_enable",
    ("POST", "/api/circuit-sensing/{circuit_id}/disable"): "circuit_sensing_disable",
    ("POST", "/api/circuits/claims/release"): "claims_release",
    ("POST", "/api/circuits/import"): "circuit_import",
    ("PUT", "/api/circuits/active/intensity"): "circuit_dial",
    ("POST", "/api/circuits/{circuit_id}/activate"): "circuit_activate",
    ("POST", "/api/circuits/{circuit_id}/deactivate"): "circuit_deactivate",
    ("DELETE", "/api/circuits/{circuit_id}"): "circuit_delete",
    ("DELETE", "/api/jobs/{job_id}"): "job_delete",
    ("POST", "/api/health/circuits/{name}/reset"): "breaker_reset",
}
"""Method and route -> the name of the change. Nouns with a folder name theirs there."""

QUESTIONS = frozenset(
    {
        "/api/models/preview",
        "/api/saes/preview",
        "/api/monitoring/statistics/top",
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
