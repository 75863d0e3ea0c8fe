"""Which address counts as that of the client behind proxies."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from steerserve.http.forwarded import HOPS, Forwarded
from tests.conftest import Start

PROXIES = ["10.0.0.1", "10.1.0.0/16", "fd00::/8"]
FORWARDED = {
    "a proxy": ("10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
    "nobody's proxy": ("9.9.9.9", ["1.2.3.4"], "9.9.9.9"),
    "no header": ("10.0.0.1", [], "10.0.0.1"),
    "made up on the left": ("10.0.0.1", ["8.8.8.8, 1.2.3.4"], "1.2.3.4"),
    "two proxies": ("10.0.0.1", ["8.8.8.8, 1.2.3.4, 10.1.2.3"], "1.2.3.4"),
    "two headers": ("10.0.0.1", ["8.8.8.8", "1.2.3.4, 10.1.2.3"], "1.2.3.4"),
    "proxies alone": ("10.0.0.1", ["10.1.2.3"], "10.1.2.3"),
    "no address": ("10.0.0.1", ["1.2.3.4, me"], "10.0.0.1"),
    "no address on the left": ("10.0.0.1", ["me, 10.1.2.3"], "10.1.2.3"),
    "with a port": ("10.0.0.1", ["1.2.3.4:5000"], "1.2.3.4"),
    "the sixth version": ("fd00::2", ["[2001:db8::1]:5000"], "2001:db8::1"),
    "the fourth in the sixth": ("::ffff:10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
    "longer than anybody looks": ("10.0.0.1", ["1.2.3.4" + ",10.1.2.3" * HOPS], "10.1.2.3"),
    "no peer of an address": ("unix", ["1.2.3.4"], "unix"),
}
"""The peer, its headers, and the address that counts."""


@pytest.mark.parametrize("name", FORWARDED)
async def test_the_client_is_the_rightmost_address_that_is_no_proxy(name: str) -> None:
    peer, headers, expected = FORWARDED[name]
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["client"][0])

    async def nothing(*_: object) -> None: ...

    sent = [(b"x-forwarded-for", text.encode()) for text in headers]
    scope = {"type": "http", "client": (peer, 1), "headers": sent}
    await Forwarded(app, PROXIES)(scope, nothing, nothing)  # type: ignore[arg-type]
    assert seen == [expected]


def test_the_log_names_the_client_behind_a_trusted_proxy(start: Start) -> None:
    sent = {"x-forwarded-for": "1.2.3.4"}
    for proxies, expected in (([], "127.0.0.1"), (["127.0.0.0/8"], "1.2.3.4")):
        with start(trusted_proxies=proxies) as live:
            live.http.get("/api/models/4711", headers=sent)
            lines = live.data("GET", "/api/health/log")["lines"]
            (line,) = (one for one in lines if one["fields"].get("status") == 404)
            assert line["fields"]["client"] == expected
