"""Chat templates of checkpoints: they render in processes of their own, so a costly one holds up nobody else."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve.engines.sandbox import templates
from tests.openai.conftest import TEMPLATE, in_flight, until_idle
from tests.resident import processes
from tests.service import Running, add_model, running
from tests.worker import models
from tests.worker.running import with_bos

CHAT = "/v1/chat/completions"
NAME = "costly"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
COSTLY = (
    "{% set wish = messages[0].content %}"
    "{% if wish == 'loop' %}" + LOOPS + "{% elif wish == 'grow' %}{{ 'a' * 10**10 }}"
    "{% elif wish == 'sink' %}{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}{% endif %}" + TEMPLATE
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("costly")
    folder = with_bos(models.save("llama", root / "model"), COSTLY)
    with running(root / "home", kv_cache_mb=1, torch_threads=1) as live:
        number = add_model(live, folder, NAME)
        live.data("POST", f"/api/models/{number}/load?wait=true")
        yield live


def chat(*texts: str) -> dict[str, Any]:
    first, *others = ([{"role": "user", "content": text}] for text in texts)
    body = {"model": NAME, "messages": first, "max_tokens": 4, "temperature": 0}
    return body | ({"extra_messages": others} if others else {})


def texts(live: Running, path: str, body: dict[str, Any]) -> list[str]:
    choices = live.post(path, body).json()["choices"]
    return [c["message"]["content"] if "message" in c else c["text"] for c in choices]


@pytest.mark.parametrize("wish", ["loop", "grow", "sink"])
def test_a_costly_conversation_is_refused_and_the_next_is_served(
    live: Running, wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = texts(live, CHAT, chat("hello"))
    serving = processes(live)
    monkeypatch.setattr(templates, "RENDER_SECONDS", 0.5)
    status, error = live.v1_error(CHAT, chat(wish))
    monkeypatch.undo()
    assert (status, error["code"], error["param"]) == (400, "invalid_parameter", "messages")
    assert error["message"].startswith("the model's chat template refuses these messages: ")
    assert texts(live, CHAT, chat("hello")) == before
    assert processes(live) == serving


def test_requests_pass_by_a_conversation_that_is_rendered_for_long(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"model": NAME, "prompt": "hello", "max_tokens": 4, "temperature": 0}
    answers = texts(live, CHAT, chat("hello")), texts(live, "/v1/completions", plain)
    monkeypatch.setattr(templates, "RENDER_SECONDS", 600.0)
    host = live.url.removeprefix("http://")
    costly = http.client.HTTPConnection(host)
    costly.request("POST", CHAT, json.dumps(chat("loop")), {"content-type": "application/json"})
    while in_flight(live) != 1:
        pass
    assert (texts(live, CHAT, chat("hello")), texts(live, "/v1/completions", plain)) == answers
    assert live.data("GET", "/api/health")
    assert in_flight(live) == 1
    costly.close()
    until_idle(live)


def test_the_conversation_that_a_template_refuses_is_named(live: Running) -> None:
    status, error = live.v1_error(CHAT, chat("hello", "sink"))
    assert (status, error["code"], error["param"]) == (
        400,
        "invalid_parameter",
        "extra_messages[0]",
    )
