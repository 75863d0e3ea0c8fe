"""Documents and files with a few things wrong: batches and their lines, corpora, vectors, imports, recorded runs that
are made again, and conditions inside each other."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from steerserve.rules.steering.edits import Condition, Edit, Feature, Target
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from tests.fuzz import values
from tests.fuzz.bodies import broken, tamed
from tests.fuzz.client import Answer, Request
from tests.fuzz.routes import (
    CLUSTER,
    CORPUS,
    JSON,
    MANY_LAYERS,
    MOST_TOKENS,
    PROBE,
    PROFILE,
    TEXT,
    VECTOR,
)
from tests.recorded import RUN

Send = Callable[[Request], Answer]
WIDTH = 192
"""The hidden size of the demo model."""
NUMBERS = (0.0, *[1.0] * 12, -1.0, 1e-38, 3e38, -3e38, 1e300, math.inf, math.nan)
"""Numbers at the ends of what a float32 or a float64 holds."""
COUNTS = (1, 3, 60, 70, 1000, 30_000)
"""How many parts a list has: few, about a bound, and very many."""
MOST_BYTES = 9_000_000
"""The most bytes of the texts of one body, a little more than the service reads. The fuzzer holds several of them."""
BOUNDARY = "fuzzed"
LINES = (("Content-Type", "application/x-ndjson"),)
PLAIN = (("Content-Type", JSON),)


def hostile(draw: Random, world: Any, send: Send) -> None:
    """Send one document of any kind, and what uses it."""
    draw.choice((_batch, _corpus, _vector, _import, _replay, _conditions, _names))(
        draw, world, send
    )


def _batch(draw: Random, world: Any, send: Send) -> None:
    """A file of lines, a batch of it, and the end of both."""
    content = b"\n".join(_lines(draw, world))
    form = {"purpose": "batch"}
    sent = send(_form("/v1/files", form, "lines.jsonl", _damaged(draw, content)))
    file_id = _id_of(sent)
    if file_id is None:
        return
    begun = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = _id_of(send(_json("POST", "/v1/batches", begun)))
    if batch_id is not None:
        send(Request("GET", f"/v1/batches/{batch_id}"))
        send(Request("POST", f"/v1/batches/{batch_id}/cancel"))
    send(Request("DELETE", f"/v1/files/{file_id}"))


def _lines(draw: Random, world: Any) -> Iterator[bytes]:
    for number in range(draw.choice((1, 2, 5))):
        body = world.filled(TEXT, draw)
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        if draw.random() < 0.6:
            line = broken(draw, line)
        if isinstance(line, dict) and isinstance(line.get("body"), dict):
            tamed(line["body"])
            line["body"].setdefault("max_tokens", MOST_TOKENS)
            if draw.random() < 0.1:
                line["body"]["x"] = values.Spliced(
                    "[" + ",".join(["[]"] * draw.choice(COUNTS)) + "]"
                )
        yield _bytes(line)


def _corpus(draw: Random, world: Any, send: Send) -> None:
    body = CORPUS | {"name": f"c{draw.getrandbits(40):x}"}
    if draw.random() < 0.3:
        text = values.text(draw)
        most = MOST_BYTES // (len(text.encode("utf-8", "surrogatepass")) + 1)
        body["texts"] = [text] * min(draw.choice(COUNTS), most)
    if draw.random() < 0.6:
        body = broken(draw, body)
    if isinstance(body, dict) and isinstance(body.get("max_tokens"), str):
        body["max_tokens"] = 50
    sent = send(_json("POST", "/api/corpora", body))
    job_id = _id_of(sent)
    if job_id is not None:
        send(Request("GET", f"/api/jobs/{job_id}"))
        send(Request("DELETE", f"/api/jobs/{job_id}"))


def _vector(draw: Random, world: Any, send: Send) -> None:
    """A file of directions in any format, its bytes or its numbers damaged."""
    numbers = _filled(draw, WIDTH)
    numbers[0] = 1.0
    kind = draw.choice(("npy", "safetensors", "json", "svec", "pt", "gguf"))
    match kind:
        case "npy":
            written = io.BytesIO()
            np.save(written, numbers)
            content = written.getvalue()
        case "safetensors":
            content = save({f"layer.{draw.randrange(12)}": numbers})
        case "json" | "svec":
            shape = broken(draw, {"layer": 2, "directions": {"2": [1.0] * 5}, "x": [[[0]]]})
            if draw.random() < 0.3:
                shape = {
                    "x": values.Spliced("[" + ",".join(["[[[0]]]"] * draw.choice(COUNTS)) + "]")
                }
            content = _bytes(shape)
        case "pt":
            content = b"\x80\x02(" + b"K\x00" * draw.choice(COUNTS) + b"l."
        case _:
            content = b"GGUF\x03\x00\x00\x00" + bytes(draw.randrange(256) for _ in range(64))
    fields = {"name": f"v{draw.getrandbits(40):x}", "layer": str(draw.choice((2, 2, -1, 10**9)))}
    made = _id_of(send(_form("/api/vectors", fields, f"x.{kind}", _damaged(draw, content))))
    if made is not None:
        edit = {"op": "add", "vector": {"id": made}, "value": draw.choice((1, 1e38, 3e38))}
        send(_edited(world, draw, edit))
        send(Request("DELETE", f"/api/vectors/{made}"))


def _import(draw: Random, world: Any, send: Send) -> None:
    circuit = MANY_LAYERS | {"members": MANY_LAYERS["members"][: draw.choice((1, 20, 999))]}  # type: ignore[index]
    path, document = draw.choice(
        (
            ("/api/profiles/import", PROFILE | {"version": "1.0"}),
            ("/api/clusters/import", CLUSTER),
            ("/api/circuits/import", circuit),
            ("/api/saes/{sae}/labels", {"3": "sea", "4": {"label": "boat"}}),
            ("/api/probes", PROBE),
            ("/api/vectors", VECTOR),
            ("/api/runs/import", {"runs": [RUN | {"request_id": "cmpl-{unique}"}]}),
        )
    )
    body = world.filled(document, draw)
    for _ in range(draw.choice((1, 2, 5))):
        body = broken(draw, body)
    send(Request("POST", world.filled(path, draw), _damaged(draw, _bytes(body)), PLAIN))


def _replay(draw: Random, world: Any, send: Send) -> None:
    """A recorded run whose edits no request could have, made again."""
    edits = tuple(_edit(draw) for _ in range(draw.choice((1, 1, 3, 70))))
    written = msgspec.msgpack.encode(edits)
    run_id = f"cmpl-{draw.getrandbits(40):x}"
    run = RUN | {"request_id": run_id}
    coded = base64.b64encode(_damaged(draw, written)).decode()
    run["steering"] = RUN["steering"] | {"edits": coded}
    if draw.random() < 0.3:
        run = broken(draw, run)
    if isinstance(run, dict) and isinstance(run.get("body"), dict):
        tamed(run["body"])
    send(_json("POST", "/api/runs/import", {"runs": [run]}))
    send(Request("POST", f"/api/runs/{run_id}/replay"))
    send(Request("DELETE", f"/api/runs/{run_id}"))


def _edit(draw: Random) -> Edit:
    def place() -> Feature | Direction:
        if draw.random() < 0.2:
            return Feature(draw.choice(("sae@2", "nobody@2")), draw.choice((1, -1, 2**31)))
        width = draw.choice((WIDTH, WIDTH, 2))
        numbers = _filled(draw, width).tobytes()
        site = draw.choice(("resid_post", "resid_post", "nowhere"))
        return Direction(draw.choice((1, 1, 2, 2, 4, 4, -1, 10**6)), site, numbers)

    low, high = draw.choice(NUMBERS), draw.choice(NUMBERS)
    target = Target(draw.choice(NUMBERS), draw.choice(NUMBERS), low, high)
    when = Condition(place(), above=draw.choice(NUMBERS)) if draw.random() < 0.5 else None
    names = draw.choice((("generated",), ("generated",), ("prompt",), ("nowhere",)))
    return Edit(place(), target, positions=Positions(Selection(names=names)), when=when)


def _conditions(draw: Random, world: Any, send: Send) -> None:
    """An edit with conditions inside each other, few or very many."""
    count = draw.choice(COUNTS)
    nodes: list[Any] = [
        {"feature": {"index": n % 1024}, "above": draw.choice((0, 1, n)), "hold": 2}
        for n in range(count)
    ]
    while len(nodes) > 16:
        name = draw.choice(("any", "all"))
        nodes = [{name: nodes[n : n + 16]} for n in range(0, len(nodes), 16)]
    edit = {"op": "add", "feature": {"index": 17}, "value": 1, "when": {"any": nodes}}
    if count < 100 and draw.random() < 0.5:
        edit = broken(draw, edit)
    send(_edited(world, draw, edit))


def _names(draw: Random, world: Any, send: Send) -> None:
    """A long name of signs that mean something in names."""
    name = draw.choice(("@a", "a@", ":", "/", "..", "\u202e", "%")) * draw.choice(COUNTS)
    body = world.filled(TEXT, draw) | {draw.choice(("model", "profile", "user")): "m" + name}
    path = draw.choice(("/v1/completions", "/v1/embeddings", "/v1/chat/completions"))
    send(_json("POST", path, body))


def _edited(world: Any, draw: Random, edit: Any) -> Request:
    body = world.filled(TEXT, draw) | {"interventions": {"edits": [edit]}}
    if draw.random() < 0.3:
        body["steering_intensity"] = 2
    return _json("POST", "/v1/completions", body)


def _filled(draw: Random, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    with np.errstate(over="ignore"):
        return np.full(width, draw.choice(NUMBERS)).astype(np.float32)


def _bytes(value: Any) -> bytes:
    return values.written(value).encode("utf-8", "surrogatepass")


def _json(method: str, path: str, body: Any) -> Request:
    return Request(method, path, _bytes(body), PLAIN)


def _form(path: str, fields: dict[str, str], name: str, content: bytes) -> Request:
    head = "".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    )
    head += (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    )
    whole = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return Request("POST", path, whole, (("Content-Type", kind),))


def _damaged(draw: Random, content: bytes) -> bytes:
    """The bytes as they are, cut, with some of them changed, or with more at the end."""
    kind, middle = draw.randrange(8), draw.randrange(len(content) + 1)
    if kind == 0:
        return content[:middle]
    if kind == 1:
        return (
            content[:middle] + bytes(draw.randrange(256) for _ in range(3)) + content[middle + 3 :]
        )
    if kind == 2:
        return content + draw.choice((b"\n" * 1000, b"\x00", content))
    return content


def _id_of(answer: Answer) -> str | None:
    """The id of what an answer has made, or of the job that it has begun."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        return None
    made = body.get("data") or body if isinstance(body, dict) else None
    made = made.get("job", made) if isinstance(made, dict) and answer.status < 300 else {}
    found = made.get("id") if isinstance(made, dict) else None
    return found if isinstance(found, str) else None
