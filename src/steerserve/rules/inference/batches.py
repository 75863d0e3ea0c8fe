"""Batches: which input is refused, how a batch goes on, and which refusals of a line pass.

Source of the forms: the Batch API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from steerserve.errors import Refusal
from steerserve.parts.registry import parts
from steerserve.rules import field_faults, json_faults, json_reading, json_size
from steerserve.rules.bounds import BATCH_LINE_BYTES, INFERENCE_BODY_VALUES
from steerserve.rules.form import Form
from steerserve.rules.inference import fields, names
from steerserve.rules.steering import documents
from steerserve.rules.text import shown

_ROUTES = {
    "/v1/chat/completions": names.CHAT,
    "/v1/completions": names.COMPLETIONS,
    "/v1/embeddings": names.EMBEDDINGS,
    "/v1/responses": names.RESPONSES,
}
ENDPOINTS = tuple(_ROUTES)
WINDOW = timedelta(hours=24)
"""The one completion window that there is."""
CUSTOM_ID_MAXIMUM = 512
FAULTS_MAXIMUM = 100
"""The most faults of an input that are told; one more says how many there are."""
TRIES = 3
"""How often a line runs again alone that was there when the engine ended, or for which the memory did not suffice."""

_STEERING = (
    "sae_steering",
    "interventions",
    "profile",
    "steering_intensity",
    *(name for part in parts().values() if part.reads_saes for name in part.fields),
)
_PASSING = frozenset(
    {
        "QUEUE_FULL",
        "MODEL_BUSY",
        "MODEL_LOADING",
        "MODEL_NOT_LOADED",
        "MODEL_NOT_RESIDENT",
        "MODEL_LOCKED",
        "MODEL_LEASED",
        "MODEL_LOAD_FAILED",
        "SHUTTING_DOWN",
        "DATABASE_UNAVAILABLE",
    }
)
_PERHAPS_OF_LINE = frozenset({"ENGINE_UNAVAILABLE", "INSUFFICIENT_MEMORY"})


class BatchStatus(StrEnum):
    """The states of a batch. Its lines run while it is in progress."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FAILED = "failed"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


UNFINISHED = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)
MAY_CANCEL = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class LineFault(Form, frozen=True):
    """Why the input of a batch is refused. `line` counts from 1; None where the fault is of the whole input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class AttachedSae(msgspec.Struct, frozen=True):
    """An SAE that was attached at a layer. `is_plain` is False where the order to attach it had overrides, or asked for
    no check."""

    sae_id: str
    layer: int
    dtype: str | None
    is_plain: bool


class BatchLine(msgspec.Struct, frozen=True):
    """A line of an input. `number` is its place in the file, from 0."""

    number: int
    custom_id: str
    body: bytes


class _Sent(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_KEYS = tuple(field.name for field in msgspec.structs.fields(_Sent))
_read_line = msgspec.json.Decoder(_Sent).decode
_read_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_line(number: int, text: bytes) -> BatchLine:
    """A line that has passed its check.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError
    """
    sent = _read_line(text)
    return BatchLine(number, sent.custom_id, bytes(sent.body))


class InputCheck:
    """Checks the lines of an input, one after the other.

    (1) A line is a JSON object with custom_id, method, url and body, and with nothing else. (2) Its method is POST, and
    its url is the endpoint of the batch. (3) No two lines have one custom_id. (4) The body is an object that names a
    model, is no larger than a request and has no more values, and asks for no stream. (5) There is a line, and there
    are at most `most` lines. (6) No key stands twice in one object. (7) Where the batch is strict, a body has no unused
    field. Where `is_strict` is None, a body has none that is nearly a steering field.

    Attributes:
        line_bytes: the most bytes of a line.
        lines: the number of lines; blank ones are none.
        models: the names of models, with the first line of each.
        is_steered: whether a line brings steering, or asks for activations.
    """

    def __init__(
        self, endpoint: str, most: int, most_bytes: int, is_strict: bool | None = None
    ) -> None:
        self._endpoint = endpoint
        self._is_strict = is_strict
        self._most = most
        self._most_bytes = most_bytes
        self.line_bytes = most_bytes + BATCH_LINE_BYTES
        self._ids: dict[str, int] = {}
        self._faults: list[LineFault] = []
        self._untold = 0
        self.lines = 0
        self.models: dict[str, int] = {}
        self.is_steered = False

    def check_lines(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """The next lines, with their places in the file."""
        for number, text in lines:
            self.lines += 1
            if self.lines <= self._most:
                self._line(number + 1, text)

    def fault(self, code: str, message: str, line: int | None = None, param: str = "") -> None:
        """Note a fault."""
        if len(self._faults) == FAULTS_MAXIMUM:
            self._untold += 1
        else:
            self._faults.append(LineFault(code, message, line, param or None))

    def faults(self) -> tuple[LineFault, ...]:
        """Every fault of the input, once all lines were taken."""
        found = list(self._faults)
        if self._untold:
            why = f"{self._untold} further faults of lines are not listed"
            found.append(LineFault("more_errors", why))
        if not self.lines:  # (5)
            found.append(LineFault("empty_file", "the file has no line"))
        elif self.lines > self._most:
            why = f"the file has {self.lines} lines; a batch has at most {self._most}"
            found.insert(0, LineFault("too_many_lines", why))
        return tuple(found)

    # ------------------------------------------------------------- inside

    def _line(self, line: int, text: bytes) -> None:
        if len(text) > self.line_bytes:  # (4)
            self._too_large(line)
            return
        if json_size.has_more_values(text, INFERENCE_BODY_VALUES):
            why = f"the line has more than {INFERENCE_BODY_VALUES} values"
            self.fault("body_too_large", why, line, "body")
            return
        try:
            sent = _read_line(text)
        except msgspec.ValidationError as error:
            self.fault("invalid_request", field_faults.spoken(str(error)), line)  # (1)
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.fault(
                "invalid_json_line",
                f"the line is not valid JSON: {json_faults.fault_of(text)}",
                line,
            )
            return
        if not self._has_right_keys(text, line):
            return
        if sent.method != "POST":  # (2)
            self.fault("invalid_method", "the method is POST", line, "method")
        if sent.url != self._endpoint:
            why = f"the url is the endpoint of the batch, {self._endpoint}"
            self.fault("mismatched_url", why, line, "url")
        self._check_id(sent.custom_id, line)
        self._check_body(bytes(sent.body), line)

    def _too_large(self, line: int) -> None:
        why = f"the body is larger than {self._most_bytes} bytes"
        self.fault("body_too_large", why, line, "body")

    def _has_right_keys(self, text: bytes, line: int) -> bool:
        others = [
            name for name, value in _read_keys(text).items() if bytes(value).strip() != b"null"
        ]
        strangers = [shown(name) for name in others if name not in _KEYS]
        for name in strangers:  # (1)
            why = f"{name}: a line has {', '.join(_KEYS)}; fields of the request stand in body"
            self.fault("invalid_request", why, line, name)
        if strangers:
            return False
        try:
            documents.read_json(text)
        except Refusal as refusal:  # (6)
            self.fault("invalid_request", refusal.message, line)
            return False
        return True

    def _check_id(self, custom_id: str, line: int) -> None:
        if not 0 < len(custom_id) <= CUSTOM_ID_MAXIMUM:
            why = f"a custom_id has 1 to {CUSTOM_ID_MAXIMUM} characters"
            self.fault("invalid_custom_id", why, line, "custom_id")
            return
        before = self._ids.setdefault(custom_id, line)
        if before != line:  # (3)
            why = f"line {before} has the custom_id {shown(custom_id)!r} too"
            self.fault("duplicate_custom_id", why, line, "custom_id")

    def _check_body(self, body: bytes, line: int) -> None:
        if len(body) > self._most_bytes:  # (4)
            self._too_large(line)
            return
        try:
            sent: object = json_reading.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            why = f"the body is not valid JSON: {json_faults.fault_of(body)}"
            self.fault("invalid_json_line", why, line, "body")
            return
        if not isinstance(sent, dict):
            self.fault("invalid_request", "the body is an object", line, "body")
            return
        model = sent.get("model")
        if not isinstance(model, str) or not model:
            why = "the body names no model"
            self.fault("missing_required_parameter", why, line, "body.model")
        else:
            self.models.setdefault(model, line)
        if sent.get("stream"):
            why = "a line of a batch is not streamed"
            self.fault("invalid_request", why, line, "body.stream")
        if "extra_body" in sent:
            why = "put the fields of extra_body into body itself"
            self.fault("invalid_request", why, line, "body.extra_body")
        if any(sent.get(name) is not None for name in _STEERING):
            self.is_steered = True
        self._check_unused(sent, line)

    def _check_unused(self, sent: dict[str, object], line: int) -> None:
        unused = fields.unused(_ROUTES[self._endpoint], sent)
        try:  # (7)
            if self._is_strict:
                fields.check_strict(unused)
            elif self._is_strict is None:
                fields.check_near(unused, sent)
        except Refusal as refusal:
            self.fault(refusal.row.v1_code, refusal.message, line, f"body.{refusal.param}")


def is_passing(refusal: Refusal) -> bool:
    """Whether a line that is refused so is not at fault, and runs again later."""
    return refusal.code in _PASSING


def is_perhaps_of_line(refusal: Refusal) -> bool:
    """Whether a line that is refused so may be the cause, as when the engine ended while it ran. It runs again alone,
    at most TRIES times."""
    return refusal.code in _PERHAPS_OF_LINE


def may_cancel(batch_id: str, status: str) -> None:
    """Raises:
    Refusal: BATCH_OVER.
    """
    if status not in MAY_CANCEL and status != BatchStatus.CANCELLING:
        why = f"the batch is {status}, so it cannot be cancelled"
        raise Refusal("BATCH_OVER", why, batch_id=batch_id, status=status)


def seconds(at: datetime) -> int:
    """A time in seconds since 1970."""
    return int(at.timestamp())
