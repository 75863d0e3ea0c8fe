"""The records of the management API have each field of the specification, with its type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running, add_sae

FIRST = demo.saes()[0]
Check = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def is_whole(value: Any) -> bool:
    return type(value) is int


def is_flag(value: Any) -> bool:
    return type(value) is bool


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_time(value: Any) -> bool:
    """A time in ISO 8601, in UTC."""
    return is_text(value) and datetime.fromisoformat(value).utcoffset() == timedelta(0)


def one_of(*choices: str) -> Check:
    return lambda value: value in choices


def or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def check_fields(record: dict[str, Any], fields: dict[str, Check]) -> None:
    assert set(fields) <= set(record)
    wrong = {name: record[name] for name, check in fields.items() if not check(record[name])}
    assert wrong == {}


MODEL: dict[str, Check] = {
    "id": is_whole,
    "name": is_text,
    "source": one_of("huggingface", "local"),
    "repo_id": or_null(is_text),
    "quantization": one_of("FP16", "Q8", "Q4", "Q2"),
    "params": is_text,
    "architecture": is_text,
    "disk_size_mb": is_whole,
    "estimated_memory_mb": is_whole,
    "status": one_of("downloading", "ready", "loading", "loaded", "error"),
    "locked": is_flag,
    "device": is_text,
    "dtype": is_text,
    "loaded_at": is_time,
    "supports_embeddings": is_flag,
}


@pytest.mark.shows(
    "envelope.8 model-record.1 model-record.2 model-record.3 model-record.4 model-record.5",
    "model-record.6 model-record.7 model-record.8 model-record.9 model-record.10",
    "model-record.11 model-record.12 model-record.13 model-record.14 model-record.15",
    "model-record.16 models.1 models.4",
)
def test_a_loaded_model_has_each_field_with_its_type(shared: Running) -> None:
    listed = shared.data("GET", "/api/models")
    (loaded,) = [model for model in listed["models"] if model["status"] == "loaded"]
    assert shared.data("GET", f"/api/models/{loaded['id']}") == loaded
    check_fields(loaded, MODEL)
    assert (loaded["id"], loaded["name"]) == (listed["loaded_model_id"], demo.MODEL_NAME)
    assert (loaded["architecture"], loaded["device"]) == ("LlamaForCausalLM", "cpu")
    assert loaded["embedding_only"] is False
    assert listed["total"] == len(listed["models"])


ATTACHED: dict[str, Check] = {
    "status": one_of("attached"),
    "sae_id": lambda value: is_text(value) and value.startswith("sae_"),
    "layer": is_whole,
    "memory_usage_mb": is_whole,
    "warnings": is_list,
    "layer_module_path": is_text,
}


@pytest.mark.shows(
    "attach-response.1 attach-response.2 attach-response.3 attach-response.4 attach-response.5",
    "attach-response.6 envelope.8 saes.8",
)
def test_an_attach_answers_each_field_with_its_type(shared: Running) -> None:
    sae_id = add_sae(shared, FIRST)
    attached = shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": FIRST.layer})
    try:
        check_fields(attached, ATTACHED)
        assert (attached["sae_id"], attached["layer"]) == (sae_id, FIRST.layer)
    finally:
        shared.data("POST", f"/api/saes/{sae_id}/detach")


ATTACHMENT: dict[str, Check] = {
    "is_attached": is_flag,
    "sae_id": is_text,
    "layer": is_whole,
    "memory_usage_mb": is_whole,
    "steering_enabled": is_flag,
    "monitoring_enabled": is_flag,
    "steering_apply_count": is_whole,
}


@pytest.mark.shows(
    "attachment-status.1 attachment-status.2 attachment-status.3 attachment-status.4",
    "attachment-status.5 attachment-status.6 attachment-status.7 saes.1 saes.10",
)
def test_the_attachment_has_each_field_with_its_type(steered: Running) -> None:
    attachment = steered.data("GET", "/api/saes/attachment")
    check_fields(attachment, ATTACHMENT)
    assert steered.data("GET", "/api/saes")["attachment"] == attachment
    (entry,) = steered.data("GET", "/api/saes/attachments")["entries"]
    shown = ("sae_id", "layer", "memory_usage_mb")
    assert [attachment[name] for name in shown] == [entry[name] for name in shown]
    assert attachment["is_attached"] is True
    steered.data("POST", f"/api/saes/{attachment['sae_id']}/detach")
    assert steered.data("GET", "/api/saes/attachment")["is_attached"] is False


LEASE: dict[str, Check] = {
    "lease_id": is_text,
    "model_id": is_whole,
    "model_name": is_text,
    "holder": is_text,
    "reason": is_text,
    "acquired_at": is_time,
    "renewed_at": is_time,
    "expires_at": is_time,
    "ttl_seconds": is_whole,
    "seconds_remaining": is_whole,
}


@pytest.mark.shows(
    "envelope.8 lease-record.1 lease-record.2 lease-record.3 lease-record.4 lease-record.5",
    "lease-record.6 lease-record.7 lease-record.8 models.29 models.30 limits.4 limits.5",
)
@pytest.mark.parametrize(("holder", "reason"), [("h", "r"), ("h" * 128, "r" * 512)])
def test_a_lease_has_each_field_with_its_type(shared: Running, holder: str, reason: str) -> None:
    model_id = shared.data("GET", "/api/models")["loaded_model_id"]
    path = f"/api/models/{model_id}/lease"
    terms = {"holder": holder, "reason": reason, "ttl_seconds": 1200}
    granted = shared.data("POST", path, terms, 201)
    header = {"X-Service-Lease": granted["lease_id"]}
    renewed = shared.http.post(f"{path}/renew", json={"ttl_seconds": 1}, headers=header)
    assert renewed.status_code == 200, renewed.text
    check_fields(granted | renewed.json()["data"], LEASE)
    shared.http.delete(path, headers=header)


@pytest.mark.shows("models.35")
def test_a_lease_id_is_named_by_a_header_and_by_no_path(shared: Running) -> None:
    described = shared.http.get("/openapi.json").json()["paths"]
    places = {
        (parameter["name"], parameter["in"])
        for operations in described.values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if "lease" in parameter["name"].lower()
    }
    assert places == {("X-Service-Lease", "header")}


STATISTICS: dict[str, Check] = {
    "feature_idx": is_whole,
    "count": is_whole,
    **dict.fromkeys(
        ("mean", "std", "min", "max", "active_ratio"), lambda value: isinstance(value, float)
    ),
}
HISTORY: dict[str, Check] = {
    "timestamp": is_time,
    "request_id": is_text,
    "token_position": is_whole,
    "activations": is_list,
    "top_k": is_list,
}


@pytest.mark.shows("monitoring-resources.2", "monitoring-resources.3", "monitoring-resources.4")
def test_what_monitoring_records_has_each_field_with_its_type(steered: Running) -> None:
    steered.data("POST", "/api/monitoring/configure", {})
    steered.data("DELETE", "/api/monitoring/history")
    steered.complete("One day", max_tokens=2)
    history = steered.data("GET", "/api/monitoring/history")
    assert set(history) == {"records", "total"}
    (record,) = history["records"]
    check_fields(record, HISTORY)
    for one in (*record["activations"], *record["top_k"]):
        assert type(one["feature_index"]) is int
        assert isinstance(one["activation"], float)
    statistics = steered.data("GET", "/api/monitoring/statistics")
    assert is_whole(statistics["total_activations"])
    assert is_time(statistics["since"])
    for one in statistics["features"]:
        check_fields(one, STATISTICS)
