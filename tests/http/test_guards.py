"""The checks before every route: the hosts that a browser may use, and the keys."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
import websockets.exceptions
from websockets.sync.client import connect

from steerserve import demo
from tests.service import Running, running

KEYS = ("first-key-of-two", "second-key-of-two")
PAGE = "https://app.example"
BEARER = {"Authorization": f"Bearer {KEYS[1]}"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose settings say that other machines reach it."""
    home = tmp_path_factory.mktemp("opened")
    with running(home, host="0.0.0.0", allowed_hosts="gpu.example.org") as live:
        yield live


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that reads its keys from a file, and that the web page PAGE may call."""
    home = tmp_path_factory.mktemp("keyed")
    file = home / "keys"
    file.write_text("\n".join(KEYS))
    with running(home, api_keys=f"@{file}", cors_origins=PAGE) as live:
        yield live


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("192.168.1.5", 200),
        ("[fe80::1]:8000", 200),
        ("localhost:8000", 200),
        ("gpu-box:8000", 200),
        ("gpu.example.org:8000", 200),
        ("GPU.example.org", 200),
        ("evil.example", 403),
        ("evil.example.:8000", 403),
        ("gpu.example.org.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil", 403),
        ("127.0.0.1:evil.example", 403),
        ("localhost:80@evil.example", 403),
        ("127.0.0.1:8000:9000", 403),
        ("[::1]:", 200),
    ],
)
@pytest.mark.parametrize("sent", ["Origin", "Sec-Fetch-Site", "User-Agent", None])
def test_a_browser_reaches_an_open_service_by_its_own_names_only(
    opened: Running, host: str, status: int, sent: str | None
) -> None:
    values = {
        "Origin": f"http://{host}",
        "Sec-Fetch-Site": "same-origin",
        "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)",
    }
    headers = {"Host": host} | ({sent: values[sent]} if sent else {})
    answer = opened.http.get("/api/models", headers=headers)
    is_host = re.fullmatch(r"(\[.*\]|[^:]*)(:[0-9]*)?", host)
    assert answer.status_code == (status if sent or not is_host else 200)
    if answer.status_code == 403:
        error = answer.json()["error"]
        assert error["code"] == "FORBIDDEN_ORIGIN"
        assert "ALLOWED_HOSTS" in error["message"]


@pytest.mark.parametrize("host", ["[::1].evil", "127.0.0.1:evil.example", "localhost:", "[::1]:80"])
def test_a_name_of_this_machine_is_its_whole_name(shared: Running, host: str) -> None:
    answer = shared.http.get("/api/models", headers={"Host": host})
    assert answer.status_code == (403 if "evil" in host else 200)


@pytest.mark.parametrize("second", ["evil.example", "localhost", ""])
def test_a_request_with_two_host_headers_is_malformed(shared: Running, second: str) -> None:
    for path in ("/api/models", "/v1/models", "/api/health", "/socket.io/?EIO=4&transport=polling"):
        with closing(HTTPConnection(shared.url.removeprefix("http://"))) as connection:
            connection.putrequest("GET", path, skip_host=True)
            connection.putheader("Host", "localhost")
            connection.putheader("Host", second)
            connection.endheaders()
            answer = connection.getresponse()
            error = json.loads(answer.read())["error"]
        assert (answer.status, error["code"].upper()) == (400, "MALFORMED_REQUEST")


def test_a_page_that_all_origins_may_use_gets_no_credentials(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running(tmp_path_factory.mktemp("all"), cors_origins="*") as live:
        for path in ("/socket.io/?EIO=4&transport=polling", "/api/models"):
            answer = live.http.get(path, headers={"Origin": PAGE})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


def test_a_page_may_read_why_it_is_refused(keyed: Running) -> None:
    """Also where no route has seen the request: without these headers a browser hides the answer from its page."""
    large = b" " * (keyed.service.settings.max_body_bytes + 1)
    for status, sent, body in (
        (401, {}, b"{}"),
        (413, BEARER, large),
        (400, BEARER | {"content-encoding": "gzip"}, b"{}"),
        (400, BEARER | {"content-type": "text/plain"}, b"{}"),
    ):
        headers = sent | {"Origin": PAGE}
        answer = keyed.http.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "*"
    foreign = keyed.http.post("/v1/models", headers={"Origin": "https://other.example"})
    assert (foreign.status_code, "access-control-allow-origin" in foreign.headers) == (403, False)


@pytest.mark.shows("authentication.4")
def test_a_page_of_another_origin_joins_no_live_events(keyed: Running) -> None:
    path = "/socket.io/?EIO=4&transport=polling"
    other = keyed.http.get(path, headers=BEARER | {"Origin": "https://other.example"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "FORBIDDEN_ORIGIN")
    mine = keyed.http.get(path, headers=BEARER | {"Origin": PAGE})
    assert (mine.status_code, mine.headers["access-control-allow-origin"]) == (200, PAGE)


def test_a_rebound_page_reaches_neither_door_nor_the_socket(opened: Running) -> None:
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    refused = opened.http.post("/v1/chat/completions", json={}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden_origin")
    joined = opened.http.get("/socket.io/?EIO=4&transport=polling", headers=headers)
    assert joined.status_code == 403


@pytest.mark.parametrize(
    "path", ["/api/health", "/api/health/ready", "/v1/models", "/api/saes/sae_none", "/ui/"]
)
def test_head_is_answered_as_get_without_the_body(shared: Running, path: str) -> None:
    read = shared.http.get(path)
    head = shared.http.head(path)
    assert (head.status_code, head.content) == (read.status_code, b"")
    assert set(head.headers) == set(read.headers)
    assert shared.http.head("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/chat/completions", 400), ("/api/saes/steering", 422)]
)
def test_a_compressed_body_is_refused_by_its_name(shared: Running, path: str, status: int) -> None:
    body = gzip.compress(b"{}")
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused = shared.http.post(path, content=body, headers=headers)
    error = refused.json()["error"]
    assert refused.status_code == status
    assert "compressed with 'gzip'" in error["message"]
    assert "Content-Encoding" in (error.get("param"), error.get("details", {}).get("param"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/completions",
            {"model": demo.MODEL_NAME, "prompt": "One", "max_tokens": 1, "temperature": 0},
        ),
        ("/api/models/preview", {"repo_id": "none"}),
    ],
)
def test_a_byte_order_mark_before_the_json_changes_nothing(
    shared: Running, path: str, body: dict[str, Any]
) -> None:
    headers = {"content-type": "application/json"}
    plain = shared.http.post(path, json=body)
    marked = shared.http.post(
        path, content=b"\xef\xbb\xbf" + json.dumps(body).encode(), headers=headers
    )
    assert marked.status_code == plain.status_code
    assert marked.json().get("choices") == plain.json().get("choices")


@pytest.mark.shows("authentication.1", "authentication.2", "authentication.3")
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer anything"}, {"Authorization": "Basic cHJveHk6eA=="}]
)
def test_without_keys_every_route_is_open_whatever_credentials_are_sent(
    shared: Running, headers: dict[str, str]
) -> None:
    """A proxy that checks its own credentials may leave them in the request."""
    paths = "/v1/models /api/models /api/health/detailed /socket.io/?EIO=4&transport=polling"
    for path in paths.split():
        assert shared.http.get(path, headers=headers).status_code == 200
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1}
    assert shared.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    edited = shared.http.post("/api/health/circuits/huggingface/reset", headers=headers)
    assert edited.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEYS[0]}"},
        {"Authorization": KEYS[0]},
        {"Authorization": f"Bearer {KEYS[0]}x"},
        {"Authorization": f"Bearer {','.join(KEYS)}"},
    ],
)
def test_every_route_but_the_probes_needs_a_key(keyed: Running, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/v1/nowhere"):
        refused = keyed.http.get(path, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.json()["error"]["type"] == "invalid_request_error"
    paths = "/api/models /api/health/detailed /openapi.json /socket.io/?EIO=4&transport=polling /nowhere"
    for path in paths.split():
        refused = keyed.http.get(path, headers=headers)
        assert refused.status_code == 401
        assert refused.json()["success"] is False
        assert refused.json()["error"]["code"] == "UNAUTHORIZED"
    for path in ("/api/health", "/api/health/ready"):
        assert keyed.http.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_each_key_opens_every_route(keyed: Running, scheme: str, key: str) -> None:
    headers = {"Authorization": f"{scheme} {key}"}
    for path in ("/v1/models", "/api/models", "/socket.io/?EIO=4&transport=polling"):
        assert keyed.http.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "needs a key"),
        ({"Authorization": "Basic eDp5"}, "needs a key"),
        ({"Authorization": "Bearer another"}, "the key that was sent is not among the keys"),
    ],
)
def test_a_wrong_key_is_told_from_a_missing_one(
    keyed: Running, headers: dict[str, str], why: str
) -> None:
    message = keyed.http.get("/v1/models", headers=headers).json()["error"]["message"]
    assert why in message
    assert "another" not in message


def test_a_key_in_an_address_is_none(keyed: Running) -> None:
    assert keyed.http.get(f"/api/models?api_key={KEYS[0]}").status_code == 401


def test_a_websocket_without_a_key_is_answered_401(keyed: Running) -> None:
    url = keyed.url.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        connect(url)
    assert refused.value.response.status_code == 401
    with connect(url, additional_headers=BEARER) as joined:
        assert str(joined.recv()).startswith("0")


def test_a_key_is_in_no_line_of_the_log(
    keyed: Running, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    keyed.http.get("/api/models", headers=BEARER)
    keyed.http.get("/api/models", headers={"Authorization": "Bearer sentinel-of-a-stranger"})
    lines = caplog.text + "".join(capsys.readouterr())
    assert not any(secret in lines for secret in (*KEYS, "sentinel-of-a-stranger"))


@pytest.mark.shows("authentication.4")
def test_the_question_whether_a_page_may_ask_needs_no_key(keyed: Running) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = keyed.http.options("/v1/models", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert keyed.http.options("/v1/models").status_code == 401
    assert keyed.http.get("/v1/models", headers={"Origin": PAGE}).status_code == 401
