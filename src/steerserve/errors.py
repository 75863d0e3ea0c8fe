"""The table of error codes, and the exceptions that carry them.

Each code has one row. The row has the status under `/api`; the status, `code` and `type` under `/v1`; the source of
`Retry-After`; and whether repeating the request can help. No other file has the status of a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Retry(StrEnum):
    """The source of the `Retry-After` of a 503."""

    NONE = "none"
    QUEUE = "queue"
    LOAD = "load"
    NOT_LOADED = "not_loaded"
    MEMORY = "memory"
    HUB = "hub"
    READINESS = "readiness"
    DATABASE = "database"
    CONNECTIONS = "connections"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Row:
    """How one code is answered. `v1_code` is the code under `/v1`. `may_pass` says that the same request may succeed
    later although no Retry-After says when."""

    code: str
    api: int
    v1: int
    meaning: str
    retry: Retry = Retry.NONE
    may_pass: bool = False
    v1_name: str | None = None
    v1_type: str = "invalid_request_error"

    @property
    def v1_code(self) -> str:
        return self.v1_name or self.code.lower()

    @property
    def final(self) -> bool:
        """Whether repeating the request cannot change the refusal, so the answer has `x-should-retry: false`."""
        return self.retry is Retry.NONE and not self.may_pass


_ROWS = (
    # models and leases
    Row("MODEL_NOT_FOUND", 404, 404, "no model has this id or name"),
    Row(
        "MODEL_ALREADY_EXISTS", 409, 409, "this checkpoint is already registered at this precision"
    ),
    Row("MODEL_LOAD_FAILED", 500, 500, "the model could not be loaded"),
    Row(
        "MODEL_NOT_LOADED",
        400,
        503,
        "the operation needs a loaded model",
        Retry.NOT_LOADED,
    ),
    Row("MODEL_ALREADY_LOADED", 400, 400, "the model is already loaded"),
    Row(
        "MODEL_BUSY",
        409,
        503,
        "a load or an unload is running, or the model is in use",
        Retry.LOAD,
        v1_type="server_error",
    ),
    Row("MODEL_LOCKED", 409, 409, "a model is locked against replacement"),
    Row("MODEL_LEASED", 409, 409, "another holder leases the resident model"),
    Row("MODEL_NOT_RESIDENT", 409, 409, "the named model is not resident"),
    Row("LEASE_NOT_FOUND", 404, 404, "unknown lease; a restart ends every lease"),
    Row("LEASE_EXPIRED", 409, 409, "the lease has ended"),
    Row("INVALID_LEASE_REQUEST", 400, 400, "a lease field is missing or out of bounds"),
    Row("MODEL_LOADING", 503, 503, "the named model is being loaded", Retry.LOAD),
    Row(
        "AMBIGUOUS_MODEL_NAME",
        400,
        400,
        "the name fits several models",
        v1_name="AMBIGUOUS_MODEL_NAME",
    ),
    # resources
    Row("INSUFFICIENT_MEMORY", 507, 503, "the memory does not suffice", Retry.MEMORY),
    Row("INSUFFICIENT_DISK", 507, 507, "the disk does not suffice"),
    Row("UNSUPPORTED_QUANTIZATION", 400, 400, "the engine cannot apply this quantization"),
    Row("GPU_NOT_FOUND", 404, 404, "the named card is not visible"),
    Row("SPLIT_NOT_HONOURED", 409, 409, "a card would get no part of the model"),
    Row(
        "INVALID_GGUF_TENSOR_SPLIT",
        500,
        500,
        "GGUF_TENSOR_SPLIT does not fit the cards",
    ),
    Row("REPLICA_NOT_FOUND", 404, 404, "no replica of the resident model has this name"),
    Row(
        "REPLICAS_UNAVAILABLE",
        409,
        409,
        "the replicas cannot be changed: there is one engine process, or the last replica would go",
    ),
    # downloads
    Row("DOWNLOAD_FAILED", 502, 502, "the download failed", may_pass=True),
    Row("DOWNLOAD_CANCELLED", 499, 499, "the download was cancelled"),
    Row("REPO_NOT_FOUND", 404, 404, "the repository does not exist"),
    Row("GATED_MODEL_NO_TOKEN", 401, 401, "the repository is gated and no token was given"),
    Row("INVALID_HUB_TOKEN", 401, 401, "the hub rejected the token"),
    Row(
        "INVALID_LOCAL_PATH",
        400,
        400,
        "the local path is missing, malformed, protected, or outside LOCAL_PATHS",
    ),
    Row(
        "REMOTE_CODE_REFUSED",
        403,
        403,
        "the model's own Python files would run, which ALLOW_REMOTE_CODE does not allow",
    ),
    Row(
        "HUB_UNAVAILABLE",
        503,
        503,
        "the model hub cannot be reached, or answers with a failure",
        Retry.HUB,
    ),
    # SAEs and steering
    Row("SAE_NOT_FOUND", 404, 404, "no SAE has this id"),
    Row("SAE_NOT_ATTACHED", 400, 400, "the operation needs an attached SAE"),
    Row("SAE_ALREADY_ATTACHED", 409, 409, "the SAE is attached"),
    Row("SAE_INCOMPATIBLE", 400, 400, "the SAE does not fit the loaded model"),
    Row("SAE_LOAD_FAILED", 500, 500, "the SAE's weights could not be loaded"),
    Row("INVALID_FEATURE_INDEX", 400, 400, "a feature index is outside [0, d_sae)"),
    Row(
        "TOO_MANY_EDITS",
        422,
        422,
        "a request brings more edits, or more conditions of edits, than one may have",
    ),
    Row(
        "INVALID_INTERVENTION",
        422,
        400,
        "an edit of interventions is not valid",
        v1_name="invalid_parameter",
    ),
    Row(
        "SAE_SET_INCOMPLETE",
        422,
        422,
        "a member of the set names an SAE that is not registered, not downloaded, or not attached",
    ),
    Row(
        "VALIDATION_ERROR",
        422,
        400,
        "the request does not match its schema",
        v1_name="invalid_parameter",
    ),
    Row(
        "STEERING_CHANGED",
        409,
        409,
        "the steering was changed while a comparison ran",
        may_pass=True,
    ),
    Row("SAE_ACTIVATIONS_REFUSED", 400, 400, "the requested activations cannot be given"),
    # profiles, clusters, circuits
    Row("PROFILE_NOT_FOUND", 404, 404, "no profile has this id or name"),
    Row("PROFILE_ALREADY_EXISTS", 409, 409, "a profile has this name"),
    Row("PROFILE_INCOMPATIBLE", 400, 400, "the profile cannot apply to the attached SAE"),
    Row("IS_CLUSTER_DOCUMENT", 200, 400, "a cluster document belongs to /api/clusters/import"),
    Row("UNKNOWN_KIND", 200, 400, "the document's kind is unknown"),
    Row(
        "DOCUMENT_STORE_FULL",
        507,
        507,
        "no room for further documents (profiles, circuits, vectors and others), or for further files and batches",
    ),
    Row("PAYLOAD_TOO_LARGE", 413, 413, "the request body is too large"),
    Row("NO_ACTIVE_CLUSTER", 200, 400, "no cluster is active"),
    Row("CIRCUIT_NOT_FOUND", 404, 404, "no circuit has this id"),
    Row("UNVALIDATED_CIRCUIT", 200, 400, "the circuit's evidence is below rung 2"),
    Row("CIRCUIT_LAYER_CONTENTION", 200, 400, "another circuit serves these layers"),
    Row("NO_ACTIVE_CIRCUIT", 200, 400, "no circuit is active"),
    Row("AMBIGUOUS_ACTIVE_CIRCUIT", 200, 400, "several circuits are active"),
    Row("CIRCUIT_SENSING_EVENT_NOT_FOUND", 404, 404, "no such circuit sensing event"),
    Row("SENSING_EVENT_NOT_FOUND", 404, 404, "no such sensing event"),
    Row("VECTOR_NOT_FOUND", 404, 404, "no vector has this id or name"),
    Row("VECTOR_ALREADY_EXISTS", 409, 409, "a vector has this name"),
    Row("INVALID_VECTOR", 422, 422, "the file or the data of a vector cannot be read as one"),
    Row(
        "VECTOR_MISMATCH",
        409,
        409,
        "the width or the layers of the vector do not fit the loaded model",
    ),
    Row("INVALID_PROBE", 422, 422, "the file or the data of a probe cannot be read as one"),
    Row("PROBE_NOT_FOUND", 404, 404, "no probe has this id or name"),
    Row("PROBE_ALREADY_EXISTS", 409, 409, "a probe has this name"),
    Row("INVALID_LENS", 422, 422, "the file cannot be read as a trained lens"),
    Row("LENS_MISMATCH", 409, 409, "the trained lens is of another checkpoint"),
    Row("LENS_NOT_FOUND", 404, 404, "no trained lens has this id or name"),
    Row("LENS_ALREADY_EXISTS", 409, 409, "a trained lens has this name, or these files"),
    Row(
        "EFFECT_NOT_FOUND",
        404,
        404,
        "no kept effects have this id, or they are no evidence for the document",
    ),
    Row("CORPUS_NOT_FOUND", 404, 404, "no corpus has this id"),
    Row(
        "CORPUS_ALREADY_EXISTS",
        409,
        409,
        "a corpus has this name, and is not the one that the request would carry on",
    ),
    Row("CORPORA_FULL", 507, 507, "no room for what is read of corpora"),
    Row("CAPTURE_NOT_FOUND", 404, 404, "no capture has this id, or it has no such file"),
    Row(
        "CAPTURE_ALREADY_EXISTS",
        409,
        409,
        "a capture has this name, and is not the one that the request would carry on",
    ),
    Row("RANGE_NOT_SATISFIABLE", 416, 416, "the range of bytes begins behind the end of the file"),
    Row("CAPTURES_FULL", 507, 507, "no room for the files of captures"),
    Row("JOB_NOT_FOUND", 404, 404, "no job has this id, or it ended more than a day ago"),
    Row(
        "LABEL_ENDPOINT_REFUSED",
        403,
        403,
        "the endpoint or the variable with its key is not in LABEL_ENDPOINTS",
    ),
    Row(
        "LABEL_ENDPOINT_FAILED",
        502,
        502,
        "the endpoint that suggests labels does not answer",
        may_pass=True,
    ),
    Row("RUN_NOT_FOUND", 404, 404, "no answer of this id is recorded"),
    Row("RUN_NOT_REPLAYABLE", 409, 409, "the recorded answer cannot be made again"),
    Row("TOO_MANY_JOBS", 409, 409, "too many jobs run or wait", may_pass=True),
    Row("FILE_NOT_FOUND", 404, 404, "no file has this id, or it has expired"),
    Row("FILE_IN_USE", 409, 409, "a batch that is not over reads this file"),
    Row("BATCH_NOT_FOUND", 404, 404, "no batch has this id"),
    Row("BATCH_OVER", 409, 409, "the batch is over, so it cannot be cancelled"),
    Row("TOO_MANY_BATCHES", 409, 409, "too many batches are not over yet", may_pass=True),
    Row("BREAKER_NOT_FOUND", 404, 404, "no circuit breaker has this name"),
    # general and /v1
    Row("CONTEXT_LENGTH_EXCEEDED", 400, 400, "prompt and completion exceed the context"),
    Row("QUEUE_FULL", 503, 503, "the request queue is full", Retry.QUEUE),
    Row("FIELD_NOT_HONOURED", 400, 400, "the field cannot be honoured on this route"),
    Row(
        "UNUSED_FIELDS_REFUSED",
        400,
        400,
        "the request has unused fields, in strict mode, or one that is nearly a steering field",
    ),
    Row("RESPONSE_FORMAT_UNSUPPORTED", 400, 400, "the response_format cannot be honoured"),
    Row("NO_CHAT_TEMPLATE", 400, 400, "the model has no chat template, or one that is not valid"),
    Row("CONSTRAINED_OUTPUT_INVALID", 500, 500, "the constrained output is invalid"),
    Row(
        "CONSTRAINED_OUTPUT_UNCHECKED",
        500,
        500,
        "the constrained output is complete, but its validation met a limit of time, memory or depth",
        may_pass=True,
        v1_type="server_error",
    ),
    Row("INVALID_SCORING_REQUEST", 400, 400, "the scoring request is invalid"),
    Row("NON_FINITE_LOGITS", 500, 500, "the model produced NaN or infinite logits"),
    Row("NON_FINITE", 500, 500, "a value that was asked for is not finite in the type asked for"),
    Row("INVALID_PARAMETER", 400, 400, "a parameter is invalid"),
    Row("MALFORMED_REQUEST", 400, 400, "the request is not valid HTTP"),
    Row("UNSUPPORTED_ENCODING", 415, 415, "the body of the request is not UTF-8"),
    Row("HEADERS_TOO_LARGE", 431, 431, "the headers of the request are too large"),
    Row("REQUEST_TIMEOUT", 408, 408, "the request arrived too slowly", may_pass=True),
    Row(
        "TOO_MANY_CONNECTIONS",
        503,
        503,
        "all connections of the service are in use",
        Retry.CONNECTIONS,
        v1_type="server_error",
    ),
    Row(
        "TOO_MANY_BODIES",
        503,
        503,
        "the bodies of requests that are in memory have no room for more",
        Retry.CONNECTIONS,
        v1_type="server_error",
    ),
    Row("NOT_FOUND", 404, 404, "no such route"),
    Row("METHOD_NOT_ALLOWED", 405, 405, "the route does not take this method"),
    Row("FORBIDDEN_ORIGIN", 403, 403, "the request comes from a foreign web page"),
    Row(
        "UNAUTHORIZED",
        401,
        401,
        "the request carries no key of API_KEYS",
        v1_name="invalid_api_key",
    ),
    Row(
        "ENGINE_UNAVAILABLE",
        503,
        503,
        "the engine ended during the request, sends no heartbeat, or cannot be started on the cluster",
        Retry.FALLBACK,
        v1_type="server_error",
    ),
    Row(
        "DATABASE_UNAVAILABLE",
        503,
        503,
        "the database cannot be used now",
        Retry.DATABASE,
        v1_type="server_error",
    ),
    Row("NOT_READY", 503, 503, "the service is not ready", Retry.READINESS),
    Row(
        "SHUTTING_DOWN",
        503,
        503,
        "the service is shutting down",
        Retry.FALLBACK,
        v1_type="server_error",
    ),
    Row(
        "INTERNAL_ERROR",
        500,
        500,
        "an error inside the service",
        may_pass=True,
        v1_type="server_error",
    ),
)

TABLE: dict[str, Row] = {row.code: row for row in _ROWS}


class Refusal(Exception):
    """The refusal of a request: a code of the table, a message for people, and details for programs.

    `param` names the wrong field of the request; None where no single field is wrong.
    """

    def __init__(
        self, code: str, message: str, *, param: str | None = None, **details: object
    ) -> None:
        self.message = _writable(message)
        super().__init__(self.message)
        self.row = TABLE[code]
        self.param = param
        self.details: dict[str, Any] = details

    @property
    def is_final(self) -> bool:
        """Whether repeating the request cannot change the answer, because of its code or because a model can never
        fit."""
        return self.row.final or self.details.get("can_ever_fit") is False

    @property
    def code(self) -> str:
        return self.row.code


class DocumentRefusal(Refusal):
    """The refusal of an imported document. The request itself is well formed, so its status under `/api` is 200, with
    `success: false` in the envelope."""


def _writable(message: str) -> str:
    """The message with escape sequences in the place of characters that no answer or no database can hold. A message
    may have a file name, whose bytes need not be UTF-8."""
    return message.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


class CannotStart(Exception):
    """The service cannot start. The message tells the reason, and names the setting or the file to change. `may_pass`
    says that the same start may succeed later, although nobody changes a setting or a file."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass
