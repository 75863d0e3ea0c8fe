"""The page of the error codes is fresh, and every code of the specification is in the table as specified."""

from __future__ import annotations

import pytest
from docs import generate

from steerserve.errors import TABLE, Refusal, Retry

# code: status under /api, status under /v1 (None where the code belongs to one API only)
SPECIFIED: dict[str, tuple[int | None, int | None]] = {
    "MODEL_NOT_FOUND": (404, 404),
    "MODEL_ALREADY_EXISTS": (409, None),
    "MODEL_LOAD_FAILED": (500, 500),
    "MODEL_NOT_LOADED": (400, 503),
    "MODEL_ALREADY_LOADED": (400, None),
    "MODEL_BUSY": (409, 503),
    "MODEL_LOCKED": (409, 409),
    "MODEL_LEASED": (409, 409),
    "MODEL_NOT_RESIDENT": (409, 409),
    "LEASE_NOT_FOUND": (404, None),
    "LEASE_EXPIRED": (409, None),
    "INVALID_LEASE_REQUEST": (400, None),
    "MODEL_LOADING": (None, 503),
    "AMBIGUOUS_MODEL_NAME": (None, 400),
    "INSUFFICIENT_MEMORY": (507, 503),
    "INSUFFICIENT_DISK": (507, None),
    "UNSUPPORTED_QUANTIZATION": (400, 400),
    "GPU_NOT_FOUND": (404, None),
    "SPLIT_NOT_HONOURED": (409, None),
    "INVALID_GGUF_TENSOR_SPLIT": (500, None),
    "DOWNLOAD_FAILED": (502, None),
    "DOWNLOAD_CANCELLED": (499, None),
    "REPO_NOT_FOUND": (404, None),
    "GATED_MODEL_NO_TOKEN": (401, None),
    "INVALID_HUB_TOKEN": (401, None),
    "INVALID_LOCAL_PATH": (400, None),
    "HUB_UNAVAILABLE": (503, None),
    "SAE_NOT_FOUND": (404, None),
    "SAE_NOT_ATTACHED": (400, None),
    "SAE_ALREADY_ATTACHED": (409, None),
    "SAE_INCOMPATIBLE": (400, None),
    "SAE_LOAD_FAILED": (500, None),
    "INVALID_FEATURE_INDEX": (400, None),
    "SAE_SET_INCOMPLETE": (422, None),
    "VALIDATION_ERROR": (422, None),
    "PROFILE_NOT_FOUND": (404, 404),
    "PROFILE_ALREADY_EXISTS": (409, None),
    "PROFILE_INCOMPATIBLE": (400, 400),
    "IS_CLUSTER_DOCUMENT": (200, None),
    "CIRCUIT_NOT_FOUND": (404, None),
    "UNVALIDATED_CIRCUIT": (200, None),
    "CIRCUIT_LAYER_CONTENTION": (200, None),
    "NO_ACTIVE_CIRCUIT": (200, None),
    "AMBIGUOUS_ACTIVE_CIRCUIT": (200, None),
    "CIRCUIT_SENSING_EVENT_NOT_FOUND": (404, None),
    "SENSING_EVENT_NOT_FOUND": (404, None),
    "CONTEXT_LENGTH_EXCEEDED": (None, 400),
    "QUEUE_FULL": (None, 503),
    "FIELD_NOT_HONOURED": (None, 400),
    "UNUSED_FIELDS_REFUSED": (None, 400),
    "RESPONSE_FORMAT_UNSUPPORTED": (None, 400),
    "NO_CHAT_TEMPLATE": (None, 400),
    "CONSTRAINED_OUTPUT_INVALID": (None, 500),
    "INVALID_SCORING_REQUEST": (None, 400),
    "NON_FINITE_LOGITS": (None, 500),
    "INVALID_PARAMETER": (None, 400),
}
RETRY = {
    "QUEUE_FULL": Retry.QUEUE,
    "MODEL_BUSY": Retry.LOAD,
    "MODEL_LOADING": Retry.LOAD,
    "MODEL_NOT_LOADED": Retry.NOT_LOADED,
    "INSUFFICIENT_MEMORY": Retry.MEMORY,
    "HUB_UNAVAILABLE": Retry.HUB,
}


def test_the_page_of_errors_is_what_the_table_says() -> None:
    stored = (generate.FOLDER / "errors.md").read_text(encoding="utf-8")
    assert stored == generate.errors_page(), "run `make docs`"


@pytest.mark.shows("versioning.3 envelope.4 download-errors.2 model-errors.6 resource-errors.5")
@pytest.mark.parametrize("code", SPECIFIED)
def test_a_specified_code_has_its_statuses(code: str) -> None:
    api, v1 = SPECIFIED[code]
    row = TABLE[code]
    assert api in (None, row.api)
    assert v1 in (None, row.v1)


@pytest.mark.parametrize("code", RETRY)
def test_a_specified_503_has_its_source_of_the_time(code: str) -> None:
    assert TABLE[code].retry is RETRY[code]


@pytest.mark.parametrize("code", TABLE)
def test_a_row_has_a_source_of_the_time_exactly_when_it_can_be_a_503(code: str) -> None:
    row = TABLE[code]
    assert (row.retry is not Retry.NONE) == (503 in (row.api, row.v1))


def test_only_what_may_pass_is_repeated_by_clients_of_openai() -> None:
    """These clients repeat 408, 409 and 5xx where no header forbids it."""
    repeated = {
        code
        for code, row in TABLE.items()
        if not row.final
        and any(status in (408, 409) or status >= 500 for status in (row.api, row.v1))
    }
    timed = {code for code, row in TABLE.items() if row.retry is not Retry.NONE}
    assert repeated - timed == {
        "DOWNLOAD_FAILED",
        "STEERING_CHANGED",
        "LABEL_ENDPOINT_FAILED",
        "TOO_MANY_JOBS",
        "TOO_MANY_BATCHES",
        "CONSTRAINED_OUTPUT_UNCHECKED",
        "REQUEST_TIMEOUT",
        "INTERNAL_ERROR",
    }


def test_a_busy_model_is_a_fault_of_the_server_not_of_the_request() -> None:
    assert TABLE["MODEL_BUSY"].v1_type == "server_error"


def test_a_refusal_knows_its_row_and_an_unknown_code_cannot_be_raised() -> None:
    refusal = Refusal("MODEL_LOCKED", "locked", param="model", holder="me")
    assert (refusal.code, refusal.row.v1, refusal.param) == ("MODEL_LOCKED", 409, "model")
    assert refusal.details == {"holder": "me"}
    with pytest.raises(KeyError):
        Refusal("NO_SUCH_CODE", "?")
