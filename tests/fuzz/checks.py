"""What every answer is held to, whatever was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from steerserve.errors import TABLE
from tests.described import Description, is_described
from tests.fuzz.client import Answer, Bytes, Request
from tests.fuzz.routes import RESPONSES

UNPARSED = frozenset({400, 408, 411, 413, 414, 417, 421, 426, 431, 501, 505})
"""Statuses of refusals of bytes that are no request: such bytes name no path, so no surface gives the form."""
COMPARE = "/api/compare"
BINARY = "application/octet-stream"

FILE = re.compile(r"/v1/files/[^/]*/content")
_INSIDE = re.compile(rb"Traceback \(most recent|site-packages| object at 0x[0-9a-f]+")
_V1 = {(row.v1_code, row.v1) for row in TABLE.values() if row.code != "INTERNAL_ERROR"}


def path_of(target: str) -> str:
    """The path that the service routes by."""
    try:
        return unquote(urlsplit(target).path if not target.startswith("//") else target)
    except ValueError:
        return target


def faults(sent: Request | Bytes, answer: Answer) -> Iterator[str]:
    """What is wrong with an answer; nothing for a good one."""
    if answer.fault is not None:
        yield answer.fault
        return
    if answer.status == 0:
        return
    if isinstance(sent, Request):
        yield from _of_request(sent, answer)
    else:
        yield from _of_bytes(answer)
    if answer.status >= 400 and _INSIDE.search(answer.body):
        yield "the answer tells of the inside"
    if answer.status == 503 and not _is_time(answer.headers.get("retry-after", "")):
        yield "a 503 without a valid Retry-After"


def undescribed(description: Description, sent: Request | Bytes, answer: Answer) -> Iterator[str]:
    """How an answer differs from the description that the service gives of it."""
    if isinstance(sent, Bytes) or answer.fault is not None:
        return
    path, kind = path_of(sent.target), answer.headers.get("content-type")
    body = _object(answer)
    if body is not None and is_described(sent.method, path, kind):
        yield from description.faults(sent.method, path, answer.status, body)


def _of_bytes(answer: Answer) -> Iterator[str]:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    if answer.status >= 500 and answer.status not in UNPARSED:
        body = _object(answer)
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict) or error.get("code") in (
            None,
            "INTERNAL_ERROR",
            "internal_error",
        ):
            yield f"an untyped {answer.status}"
    elif answer.status >= 400 and not is_json and answer.status not in UNPARSED:
        yield f"a {answer.status} without a form"


def _of_request(sent: Request, answer: Answer) -> Iterator[str]:
    path = path_of(sent.target)
    if _is_upgrade(sent):
        if answer.status >= 500:
            yield f"a {answer.status} of a WebSocket handshake"
    elif path.startswith("/socket.io"):
        if answer.status >= 500:
            yield f"a {answer.status} of the socket"
    elif sent.method == "HEAD":
        if answer.body:
            yield "an answer to HEAD with a body"
        if answer.status == 500:
            yield "an untyped 500"
    elif path.startswith("/v1"):
        yield from _of_inference(path, answer)
    elif answer.status >= 400 or path.startswith("/api"):
        yield from _of_management(path, answer)
    if answer.status == 405 and not answer.headers.get("allow"):
        yield "a 405 without Allow"


def _is_upgrade(sent: Request) -> bool:
    """Whether the request asks for a WebSocket: the answer is one of that protocol, not of a surface."""
    asked = {name.lower(): value.lower() for name, value in sent.headers}
    return asked.get("connection") == "upgrade" and asked.get("upgrade") == "websocket"


def _of_inference(path: str, answer: Answer) -> Iterator[str]:
    if answer.headers.get("x-service-batch") != "extra_messages":
        yield "an answer of /v1 without X-Service-Batch"
    if answer.status < 400:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            is_response = path == RESPONSES
            yield from (response_faults if is_response else stream_faults)(answer.body)
        elif FILE.fullmatch(path) or (not answer.body and answer.status in (200, 204)):
            return  # the content of a file, and an answer to OPTIONS
        elif not isinstance(_object(answer), dict):
            yield "an answer of /v1 that is no object"
        return
    body = _object(answer)
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(body, dict) or set(body) != {"error"} or not isinstance(error, dict):
        yield f"a {answer.status} of /v1 without the error object"
    else:
        yield from _of_error(error, answer.status)


def _of_error(error: dict[str, Any], status: int | None) -> Iterator[str]:
    """The error object of `/v1`; in a stream it has no status of its own."""
    if not {"message", "type", "code", "param"} <= set(error):
        yield "an error object with missing fields"
    elif not isinstance(error["message"], str) or not error["message"]:
        yield "an error without a message"
    elif status is None:
        if error["code"] not in {code for code, _ in _V1}:
            yield f"an untyped error event {error['code']!r}"
    elif (error["code"], status) not in _V1:
        yield f"an untyped {status}: {error['code']!r}"


def _of_management(path: str, answer: Answer) -> Iterator[str]:
    if path.endswith(("/prometheus", "/runs/export")) and answer.status == 200:
        return
    is_file = path.endswith("/export") or "/files/" in path
    if is_file and answer.headers.get("content-type") == BINARY:
        return
    if path == COMPARE and answer.headers.get("content-type", "").startswith("text/event-stream"):
        yield from comparison_faults(answer.body)
        return
    body = _object(answer)
    if not isinstance(body, dict) or set(body) != {"success", "data", "error"}:
        yield f"a {answer.status} outside the envelope"
    elif body["success"] is True:
        if answer.status >= 400 or body["error"] is not None:
            yield f"a {answer.status} that claims success"
    elif body["success"] is not False or body["data"] is not None:
        yield f"a {answer.status} with both data and error"
    elif not isinstance(body["error"], dict) or set(body["error"]) != {
        "code",
        "message",
        "details",
    }:
        yield "an error without code, message and details"
    else:
        yield from _of_code(body["error"]["code"], answer.status)


def _of_code(code: str, status: int) -> Iterator[str]:
    if code not in TABLE or code == "INTERNAL_ERROR":
        yield f"an untyped {status}: {code!r}"
    elif status not in (TABLE[code].api, 200):  # the description says which routes refuse with 200
        yield f"{code} with status {status}"


def stream_faults(body: bytes) -> Iterator[str]:
    """What is wrong with a stream that ended: it has chunks, one with the usage, or one error, and then `[DONE]`."""
    frames = body.split(b"\n\n")
    if frames.pop() != b"" or not frames or frames.pop() != b"data: [DONE]":
        yield "a stream that does not end with [DONE]"
        return
    events: list[Any] = []
    for frame in frames:
        if frame.startswith(b":"):
            continue
        try:
            events.append(json.loads(frame.removeprefix(b"data: ")))
        except ValueError:
            yield "a stream with a frame that is no JSON"
            return
    if not events:
        yield "a stream without chunks"
    elif any("error" in event for event in events[:-1]):
        yield "a stream that goes on after an error"
    elif "error" in events[-1]:
        yield from _of_error(events[-1]["error"], None)
    elif sum("usage" in event for event in events) != 1:
        yield "a stream without one usage"


def response_faults(body: bytes) -> Iterator[str]:
    """What is wrong with a streamed response that ended: its events have running numbers, and the last one has the whole
    response."""
    frames = body.split(b"\n\n")
    if frames.pop() != b"":
        yield "a streamed response that breaks off"
        return
    try:
        events = [json.loads(frame.partition(b"\ndata: ")[2]) for frame in frames]
    except ValueError:
        yield "a streamed response with a frame that is no JSON"
        return
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        yield "a streamed response without running numbers"
    last = events[-1]
    if last["type"] != f"response.{last['response']['status']}":
        yield "a streamed response without its end"
    elif last["response"]["error"] is not None:
        yield from _of_error(last["response"]["error"], None)


def comparison_faults(body: bytes) -> Iterator[str]:
    """What is wrong with a streamed comparison that ended: it begins, and is complete or has one error at its end."""
    frames = body.split(b"\n\n")
    names = [frame.split(b"\n")[0] for frame in frames[:-1]]
    if frames[-1] != b"" or not names or names[0] != b"event: started":
        yield "a comparison that does not begin, or was cut"
    elif names[-1] not in (b"event: done", b"event: error"):
        yield "a comparison without an end"
    elif set(names[1:-1]) - {b"event: text", b"event: prompt"}:
        yield "a comparison with an unknown event"
    elif names[-1] == b"event: error":
        error = json.loads(frames[-2].split(b"\n")[1].removeprefix(b"data: "))
        if error.get("code") not in TABLE or error["code"] == "INTERNAL_ERROR":
            yield f"an untyped error event {error.get('code')!r}"


def _object(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) >= 1
