"""Requests that bring their own edits keep them to their end, byte for byte, while an operator changes everything that
is live: values, interventions, the intensity of a cluster, profiles, the switch."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from steerserve import demo
from tests.conftest import Start
from tests.service import Running, add_sae, load_demo
from tests.soak.watching import PATIENCE, sizes

CHAT = "/v1/chat/completions"
STATE = "x-service-steering-state"
STORIES = ("the sea", "a farm", "a fox", "the harbour")
FEATURES = (500, 7, 90, 3)


@dataclass(frozen=True, slots=True)
class Run:
    """The requests that run at once, all requests, and how many different ones there are."""

    at_once: int
    requests: int
    different: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """What one streamed answer told: its digest, its text, and its report."""

    digest: str | None
    text: str
    report: dict[str, Any]


def own_steering(direction: dict[str, Any]) -> list[dict[str, Any]]:
    """Every form in which a request brings its own edits, and what they do."""
    set_one = {"op": "set", "feature": {"index": 500}, "value": 40}
    ablate = {"op": "ablate", "vector": direction}
    push = {"op": "add", "vector": direction, "unit": "residual", "value": 0.4}
    read = {"vector": direction, "above": 0, "hold": "rest"}

    def edits(*made: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"interventions": {"edits": list(made), **fields}}

    return [
        {"sae_steering": {"features": [{"index": 500, "value": 40.0}]}},
        edits(set_one, ablate),
        edits(push, {"op": "at_most", "feature": {"index": 7}, "value": 1}, preserve_norm=True),
        edits({**set_one, "positions": "generated"}),
        edits({**push, "when": read}),
        edits({**ablate, "when": {**read, "over": "prompt_max", "hold": None}}),
        {**edits(set_one, push), "steering_intensity": 0.5},
        {"model": f"{demo.MODEL_NAME}@own"},
    ]


def asked(kinds: list[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    return [
        {
            "model": demo.MODEL_NAME,
            "messages": [{"role": "user", "content": f"Tell me of {STORIES[number % 4]}."}],
            "seed": number,
            "temperature": 1.0,
            "max_tokens": run.tokens,
            "return_steering_report": True,
            "stream": True,
            **kinds[number % len(kinds)],
        }
        for number in range(run.different)
    ]


def told(live: Running, body: dict[str, Any], begun: threading.Barrier | None = None) -> Told:
    """An answer. At its first event, the requests that run at once wait for each other."""
    text, report = "", {}
    with live.http.stream("POST", CHAT, json=body, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line or line.endswith("[DONE]"):
                continue
            if begun is not None:
                begun.wait(PATIENCE)
                begun = None
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += "".join(one["delta"].get("content") or "" for one in event["choices"])
            report = event.get("steering_report") or report
    assert report
    return Told(answer.headers.get(STATE), text, report)


def operator(live: Running, direction: dict[str, Any]) -> Iterator[None]:
    """Makes one change of what is live after the other, for ever."""
    profile = live.data("POST", "/api/profiles", {"name": "live", "steering": {"7": -30}}, 201)
    document = json.loads(demo.CLUSTER.read_text())
    imported = live.data("POST", "/api/clusters/import", document)
    cluster = imported["results"][0]["profile_id"]
    edits = [{"op": "ablate", "vector": direction}]
    sets = [[{"op": "set", "feature": {"index": 90}, "value": 25}], edits]
    for index, made in zip(cycle(FEATURES), cycle(sets), strict=False):
        yield live.data("POST", "/api/saes/steering", {"feature_idx": index, "value": 60.0})
        yield live.data("PUT", "/api/interventions", {"edits": made})
        yield live.data("POST", f"/api/profiles/{profile['id']}/activate")
        yield live.data("POST", f"/api/profiles/{profile['id']}/deactivate")
        yield live.data("POST", f"/api/clusters/{cluster}/activate")
        yield live.data("PUT", "/api/clusters/active/intensity", {"intensity": 0.5})
        yield live.data("POST", "/api/saes/steering/disable")
        yield live.data("POST", "/api/saes/steering/enable")
        yield live.data("POST", f"/api/clusters/{cluster}/deactivate")
        yield live.data("DELETE", "/api/interventions")
        yield live.data("DELETE", "/api/saes/steering")


def inline(width: int, layer: int) -> dict[str, Any]:
    numbers = [1.0 if at % 5 == 3 else -0.25 for at in range(width)]
    return {
        "layer": layer,
        "data": base64.b64encode(struct.pack(f"<{width}f", *numbers)).decode(),
    }


@sizes(Run(16, 16, 16, 48), Run(50, 500, 50, 160), seconds=1200)
def test_a_live_change_touches_no_byte_of_requests_with_own_edits(start: Start, size: Run) -> None:
    with start(max_concurrent_requests=size.at_once + 1, max_pending_requests=size.at_once) as live:
        load_demo(live)
        sae = demo.saes()[1]
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})
        width = live.data("GET", "/api/saes")["saes"][0]["d_in"]
        direction = inline(width, sae.layer - 1)
        edits = [{"op": "scale", "feature": {"index": 500}, "value": 3}]
        live.data(
            "POST", "/api/profiles", {"name": "own", "steering": {"90": 40}, "edits": edits}, 201
        )
        bodies = asked(own_steering(direction), size)
        with ThreadPoolExecutor(size.different) as pool:
            unchanged = list(pool.map(partial(told, live), bodies))
        assert len({one.text for one in unchanged}) > size.different // 2

        changing = operator(live, direction)
        changes = changed = 0
        follower = bodies[0] | {"sae_steering": None, "max_tokens": 2 * size.tokens}
        for first in range(0, size.requests, size.at_once):
            numbers = range(first, first + size.at_once)
            begun = threading.Barrier(size.at_once + 2)
            with ThreadPoolExecutor(size.at_once + 1) as pool:
                rows = [
                    pool.submit(told, live, bodies[number % size.different], begun)
                    for number in numbers
                ]
                following = pool.submit(told, live, follower, begun)
                begun.wait(PATIENCE)
                while not all(row.done() for row in rows):
                    next(changing)
                    changes += 1
            for number, row in zip(numbers, rows, strict=True):
                assert row.result() == unchanged[number % size.different], number
            changed += following.result().report["changed"]
        print(f"{size.requests} requests, {changes} changes; in {changed} waves a follower changed")
        assert not any(one.report["changed"] for one in unchanged)
        if size.requests > size.at_once:
            assert changed
