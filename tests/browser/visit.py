"""A page in the browser, with what every visit must hold: no error of the page, no request to another origin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, ViewportSize, expect

ROOT = Path(__file__).parents[2]
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
NARROW: ViewportSize = {"width": 360, "height": 780}
WAIT = 90_000
"""The time within which something must be seen, in milliseconds: a busy machine draws late."""
expect.set_options(timeout=WAIT)


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the navigation, from `ui/src/pages.ts`. `g` and then `key` lead to it."""

    path: str
    title: str
    key: str


def entries() -> list[Entry]:
    """The pages in the order of the navigation."""
    text = (ROOT / "ui" / "src" / "pages.ts").read_text(encoding="utf-8")
    return [
        Entry(*found)
        for found in re.findall(r'\{ path: "([^"]+)", title: "([^"]+)", key: "(.)"', text)
    ]


class Visit:
    """One tab. Its faults are collected, and `check` fails with them."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        page.set_default_timeout(WAIT)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(f"error of the page: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))

    def allow(self, pattern: str) -> None:
        """Allow errors of the console that a test provokes."""
        self._allowed.append(re.compile(pattern))

    def check(self) -> None:
        bad = [
            fault for fault in self.faults if not any(one.search(fault) for one in self._allowed)
        ]
        assert not bad, "\n".join(bad)

    def open(self, path: str, wait: bool = True) -> Visit:
        """Open a page, and wait until its parts have their data."""
        self.page.goto(f"{self.url}/ui/#{path}")
        if wait:
            self.settled()
        return self

    def settled(self) -> None:
        expect(self.heading).to_be_visible()
        expect(self.page.get_by_text("Loading", exact=True)).to_have_count(0)
        expect(self.connection("live")).to_be_visible()

    def connection(self, word: str) -> Locator:
        """The word in the strip that says whether live events arrive."""
        return self.strip.get_by_text(word, exact=True)

    @property
    def strip(self) -> Locator:
        """The strip above every page: what is loaded, attached and steering."""
        return self.page.get_by_role("banner")

    @property
    def heading(self) -> Locator:
        return self.page.get_by_role("main").get_by_role("heading", level=1)

    def button(self, name: str | re.Pattern[str], exact: bool = True) -> Locator:
        return self.page.get_by_role("button", name=name, exact=exact)

    def violations(self) -> list[str]:
        """What axe finds in the page as it is drawn now, once no colour is on its way to another."""
        still = "() => Promise.allSettled(document.getAnimations().map(one => one.finished)).then(() => {})"
        self.page.evaluate(still)
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        # the lines of the log are alike, and there are hundreds
        some = {"exclude": [["[role=log] li:nth-child(n+9)"]]}
        result: dict[str, Any] = self.page.evaluate("some => axe.run(some)", some)
        return [
            f"{one['id']}: {one['help']}: {node['html'][:160]}"
            for one in result["violations"]
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """The pixels by which the page is wider than its window."""
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(width))

    def check_narrow(self) -> None:
        """Make the window narrow. The page must fit into it."""
        self.page.set_viewport_size(NARROW)
        assert self.overflow() <= 0

    def _said(self, message: ConsoleMessage) -> None:
        # a service that the machine starves may refuse with 503 for a moment, and the page asks again
        if message.type in ("error", "warning") and "status of 503" not in message.text:
            self.faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _asked(self, url: str) -> None:
        own = (f"{self.url}/", self.url.replace("http", "ws", 1) + "/", "data:", "blob:", "about:")
        if not url.startswith(own):
            self.faults.append(f"request to another origin: {url}")
