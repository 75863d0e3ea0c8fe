"""Names and texts of every kind of Unicode, through the routes of both APIs.

A text is answered exactly as it came, or it is refused with a code of the error table that names the field. It never
becomes a 500, a broken header, a line of its own in the log, or half a surrogate pair in the database.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from steerserve import demo
from steerserve.errors import TABLE
from tests.service import Running, add_sae

TEXTS = {
    "combining": "e\u0301\u0323o\u0308",
    "stacked": "Z" + "\u0334\u0351\u0489" * 20,
    "hebrew": "\u05e9\u05dc\u05d5\u05dd",
    "hindi": "\u0939\u093f\u0928\u094d\u0926\u0940",
    "thai": "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "direction_mark": "a\u200fb\u061c",
    "override": "a\u202egpj.exe",
    "isolate": "\u2066a\u2069",
    "zero_width": "a\u200bb\u200c\u2060c\ufeff",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "flag": "\U0001f1e9\U0001f1ea",
    "keycap": "1\ufe0f\u20e3",
    "tag": "\U000e0041\U000e007f",
    "high_half": "a\ud800b",
    "low_half": "\udc80",
    "swapped_halves": "\udc00\ud800",
    "null": "a\x00b",
    "bell": "a\x07",
    "escape": "\x1b[2Ja\x1b]0;owned\x07",
    "forged_line": "x\n2026-01-01T00:00:00Z [info     ] forged",
    "forged_header": "x\r\nX-Forged: 1",
    "next_line": "a\x85b",
    "line_separator": "a\u2028b\u2029c",
    "vertical_tab": "a\x0bb\x0cc\x1cd",
    "delete": "a\x7fb\x9b31m",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "sharp_s": "stra\u00dfe",
    "sharp_s_folded": "STRASSE",
    "dotted_i": "\u0130\u0131",
    "slashes": "a/b//c",
    "dots": "../../etc/passwd",
    "percent": "%2e%2e%2f%00%0a",
    "look_alike": "\u0430dmin",
    "noncharacter": "\uffff\ufdd0",
    "private": "\ue000",
    "quotes": "\"'`<script>{{7*7}}%s{0}\\",
    "commas": "a, b;c=d",
    "blank": "\u00a0\u3000\u2003",
    "long": "n" * 20_000,
    "wide": "\u8a9e" * 700,
    "astral": "\U0001d54f",
    "replacement": "\ufffd",
}
"""A kind of text -> an example."""

PRINTABLE = re.compile(r"[\x20-\x7e]*")
LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[[a-z ]+\] ")


class Asker:
    """Sends requests byte for byte over one connection, and checks the form of every answer."""

    def __init__(self, live: Running) -> None:
        self._connection = http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=30)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any], Message]:
        """The status, the JSON and the headers of an answer."""
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(
            method, path, content, {"content-type": "application/json", **headers}
        )
        answer = self._connection.getresponse()
        whole = json.loads(answer.read().decode("utf-8"))
        assert answer.status < 500, (method, path[:200], whole)
        for name, value in answer.headers.items():
            assert PRINTABLE.fullmatch(name + value), (name, value)
        assert "x-forged" not in answer.headers
        if path.startswith("/api"):
            assert set(whole) == {"success", "data", "error"}
            assert whole["success"] is (whole["error"] is None)
        if answer.status >= 400:
            known = {row.v1_code for row in TABLE.values()} | set(TABLE)
            assert whole["error"]["code"] in known
        return answer.status, whole, answer.headers

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def asker(shared: Running) -> Iterator[Asker]:
    opened = Asker(shared)
    yield opened
    opened.close()


def encoded(text: str) -> str:
    """A text as one segment of a path. Halves of surrogate pairs become bytes that are not UTF-8."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def named(error: dict[str, Any]) -> str:
    """The field that a refusal names."""
    details = error["details"]
    places = [str(part) for problem in details.get("errors", ()) for part in problem["loc"]]
    return " ".join([str(details.get("param")), *places])


def each() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", TEXTS)


# ---------------------------------------------------------------------- texts that are stored


@each()
def test_the_name_of_a_profile_comes_back_exactly_or_is_refused(asker: Asker, kind: str) -> None:
    name = TEXTS[kind]
    status, whole, _ = asker.ask("POST", "/api/profiles", {"name": name, "description": name})
    if status != 201:
        assert status == 422
        assert "name" in named(whole["error"])
        return
    profile_id = whole["data"]["id"]
    for path in (f"/api/profiles/{profile_id}", f"/api/profiles/{profile_id}/export"):
        _, whole, _ = asker.ask("GET", path)
        assert (whole["data"]["name"], whole["data"]["description"]) == (name, name)
    # a client may send what it was given; the name is the profile's own, so nothing is refused
    status, whole, _ = asker.ask("PATCH", f"/api/profiles/{profile_id}", {"name": name})
    assert (status, whole["data"]["name"]) == (200, name)
    asker.ask("DELETE", f"/api/profiles/{profile_id}")


@each()
def test_the_holder_and_the_reason_of_a_lease_come_back_exactly_or_are_refused(
    shared: Running, asker: Asker, kind: str
) -> None:
    model_id = shared.data("GET", "/api/models")["loaded_model_id"]
    path, text = f"/api/models/{model_id}/lease", TEXTS[kind]
    for field in ("holder", "reason"):
        terms = {"holder": "h", "reason": "r"} | {field: text}
        status, whole, _ = asker.ask("POST", path, terms)
        if status != 201:
            assert (status, whole["error"]["details"]["param"]) == (400, field)
            continue
        lease_id = whole["data"]["lease_id"]
        try:
            _, whole, _ = asker.ask("GET", path)
            assert whole["data"]["lease"][field] == text
        finally:
            asker.ask("DELETE", path, **{"X-Service-Lease": lease_id})


@each()
def test_a_label_comes_back_exactly_or_is_refused(shared: Running, asker: Asker, kind: str) -> None:
    sae_id, label = add_sae(shared, demo.saes()[0]), TEXTS[kind]
    path = f"/api/saes/{sae_id}/labels"
    before = {
        one["feature_idx"]: one["label"] for one in asker.ask("GET", path)[1]["data"]["labels"]
    }
    status, whole, _ = asker.ask("POST", path, {"3": label})
    if status != 200:
        assert status == 422
        assert "3" in named(whole["error"])
        return
    _, whole, _ = asker.ask("GET", f"{path}?query={encoded(label[:150])}")
    stored = {one["feature_idx"]: one["label"] for one in whole["data"]["labels"]}
    assert stored[3] == label
    if before:
        asker.ask("POST", f"{path}?replace=true", {str(i): text for i, text in before.items()})
    else:
        asker.ask("DELETE", path)


@each()
def test_the_name_of_a_model_comes_back_exactly_or_is_refused(
    shared: Running, asker: Asker, kind: str
) -> None:
    name = TEXTS[kind]
    body = {"source": "local", "local_path": str(demo.MODEL_DIR), "quantization": "Q2"}
    status, whole, _ = asker.ask("POST", "/api/models", body | {"custom_name": name})
    if status != 202:
        assert status == 422
        assert "custom_name" in named(whole["error"])
        return
    model_id = whole["data"]["id"]
    _, whole, _ = asker.ask("GET", f"/api/models/{model_id}")
    assert whole["data"]["name"] == name
    _, whole, _ = asker.ask("GET", f"/v1/models/{encoded(name)}")
    assert whole["id"] == name
    _, whole, _ = asker.ask("GET", "/v1/models")
    assert name in {model["id"] for model in whole["data"]}
    asker.ask("DELETE", f"/api/models/{model_id}")


@pytest.mark.parametrize("kind", ["override", "isolate", "zero_width", "bell", "next_line"])
def test_names_of_corpora_and_hints_of_models_turn_and_hide_nothing(
    asker: Asker, kind: str, tmp_path: Path
) -> None:
    directions = [{"layer": 1, "data": "AACAPw=="}]
    weights = [directions[0] | {"bias": 0.0}]
    hinted = {"name": "hinted", "model_hint": TEXTS[kind]}
    for path, body in {
        "/api/corpora": {"name": TEXTS[kind], "source": "inline", "texts": ["a"]},
        "/api/vectors": hinted | {"source": "inline", "directions": directions},
        "/api/probes": hinted | {"source": "inline", "weights": weights},
        "/api/lenses": hinted | {"source": "local", "local_path": str(tmp_path)},
    }.items():
        status, whole, _ = asker.ask("POST", path, body)
        field = "name" if path == "/api/corpora" else "model_hint"
        assert (status, field in named(whole["error"])) == (422, True), (path, whole)


FILE_NAMES = [
    name
    for text in TEXTS.values()
    if "/" not in text
    and "\x00" not in text
    and len(name := text.encode("utf-8", "surrogatepass")) < 200
] + [b"\xff\xfe", b"\xc0\xaf", b"a\x80b"]


def test_a_folder_of_any_name_comes_back_exactly_or_is_refused(
    shared: Running, asker: Asker, tmp_path: Path
) -> None:
    accepted, refused = 0, set()
    for name in FILE_NAMES:
        folder = tmp_path / os.fsdecode(name)
        shutil.copytree(demo.MODEL_DIR, folder, copy_function=os.symlink)
        (tmp_path / "link").symlink_to(folder)
        for path in (folder, tmp_path / "link"):
            body = {"source": "local", "local_path": str(path), "quantization": "Q2"}
            status, whole, _ = asker.ask("POST", "/api/models", body)
            if status != 202:
                assert status in (400, 422)
                assert "local_path" in json.dumps(whole["error"])
                refused.add(whole["error"]["code"])
                continue
            accepted += 1
            record = asker.ask("GET", f"/api/models/{whole['data']['id']}")[1]["data"]
            assert (record["name"], record["local_path"]) == (folder.name, str(folder))
            asker.ask("DELETE", f"/api/models/{record['id']}")
        (tmp_path / "link").unlink()
    assert accepted > len(FILE_NAMES)
    assert refused == {"INVALID_LOCAL_PATH", "VALIDATION_ERROR"}


# ---------------------------------------------------------------------- texts that are only read


@each()
def test_a_text_in_a_header_of_an_answer_is_printable_and_whole(asker: Asker, kind: str) -> None:
    text = TEXTS[kind]
    schema = {"type": "json_schema", "json_schema": {"name": text[:64], "schema": {"const": "a"}}}
    body = {
        "model": demo.MODEL_NAME,
        "messages": [{"role": "user", "content": "a", text: 1}],
        "max_tokens": 8,
        "response_format": schema,
        text + "x": 1,
    }
    status, whole, headers = asker.ask("POST", "/v1/chat/completions", body)
    if status != 200:
        assert whole["error"]["param"] is not None or "JSON" in whole["error"]["message"]
        return
    assert headers["X-Service-Constrained"] == f"json_schema;name={quote(text[:64])}"
    assert headers["X-Service-Ignored-Fields"]


def test_the_id_of_a_request_is_kept_only_if_it_is_plain(asker: Asker) -> None:
    kept = []
    for text in TEXTS.values():
        # other texts cannot be sent in a header
        if all(" " <= character <= "\xff" and character != "\x7f" for character in text):
            sent = text.encode("latin-1").decode("latin-1")
            _, _, headers = asker.ask("GET", "/api/health", **{"X-Request-Id": sent})
            kept += [sent] if headers["X-Request-Id"] == sent else []
            assert sent in kept or headers["X-Request-Id"].startswith("req_")
    assert kept == ["STRASSE", "a/b//c", "../../etc/passwd"]


# ---------------------------------------------------------------------- the log


def test_no_text_makes_a_line_of_its_own_in_the_log(
    shared: Running, asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    model_id = shared.data("GET", "/api/models")["loaded_model_id"]
    path = f"/api/models/{model_id}/lease"
    for text in TEXTS.values():
        body = {"model": demo.MODEL_NAME, "prompt": "a", "max_tokens": 1, text: 1}
        asker.ask("POST", "/v1/completions", body)
        status, whole, _ = asker.ask("POST", path, {"holder": text, "reason": text})
        if status == 201:
            asker.ask("DELETE", path, **{"X-Service-Lease": whole["data"]["lease_id"]})
        asker.ask("GET", "/v1/models/" + encoded(text), **{"X-Request-Id": "r"})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > len(TEXTS)
    for line in lines:
        assert LINE.match(line), line
        assert line.isprintable(), line
    metrics = shared.http.get("/api/health/metrics/prometheus").text
    assert all(PRINTABLE.fullmatch(line) for line in metrics.split("\n"))
    assert "forged" not in metrics
