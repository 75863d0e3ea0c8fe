"""How fast the page is, and what open pages cost the service: a benchmark, whose times no test asserts.

What is asserted is seen, or is a number of requests. `KEEP=1 make test-browser` on a quiet machine keeps the figures,
and what asserts nothing runs there alone.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.browser import latency
from tests.browser.conftest import Tab
from tests.browser.figures import KEEP, Figures
from tests.browser.service import Demo
from tests.browser.steering import complete, generate, side, steer_link, strength

VISITS = 7 if KEEP else 2
RELEASES = 8 if KEEP else 2
CHIPS = 10_000
OPENED = ("/steer", "/live", "/sensing", "/health")
BLANK = "about:blank"
REST_SECONDS = 3
"""The time in which a browser ends what it does to open a page."""
IDLE_SECONDS = 20 if KEEP else 10
MOST_REQUESTS = 2 * IDLE_SECONDS
"""What four pages may ask for in that time. What a live event tells is not asked for."""
PAINT = """() => new Promise((resolve) => {
  new PerformanceObserver((list) => {
    for (const { name, startTime } of list.getEntries()) if (name === "first-contentful-paint") resolve(startTime);
  }).observe({ type: "paint", buffered: true });
})"""
WATCH_RELEASE = """(article) => {
  const text = () => article.querySelectorAll("p")[1]?.textContent ?? "";
  const old = text();
  window.released = new Promise((resolve) => {
    let since = 0;
    addEventListener("pointerup", () => { since = performance.now(); }, { capture: true, once: true });
    const watcher = new MutationObserver(() => {
      const now = text();
      if (since === 0 || now === "" || old.startsWith(now)) return;
      watcher.disconnect();
      // the frame that shows the token
      requestAnimationFrame(() => resolve(performance.now() - since));
    });
    watcher.observe(article, { childList: true, subtree: true, characterData: true });
  });
}"""
SCROLL = """(list) => new Promise((resolve) => {
  const since = performance.now();
  const end = list.scrollHeight - list.clientHeight;
  const times = [];
  const frame = (now) => {
    times.push(now);
    const part = (now - since) / 4000;
    list.scrollTop = end * Math.min(1, part);
    if (part < 1) requestAnimationFrame(frame);
    else resolve({ end, times });
  };
  requestAnimationFrame(frame);
})"""


only_measures = pytest.mark.skipif(not KEEP, reason="measures, and asserts nothing")


@pytest.fixture(scope="module")
def figures(browser: Browser) -> Iterator[Figures]:
    noted = Figures()
    yield noted
    noted.end(browser.version)


def test_the_first_paint_comes_soon(tab: Tab, served: Demo, figures: Figures) -> None:
    paints = []
    for _ in range(VISITS):
        visit = tab()
        visit.page.goto(f"{served.url}/")
        paints.append(float(visit.page.evaluate(PAINT)))
        visit.page.context.close()
    figures.add("first_paint_ms", statistics.median(paints), all=rounded(paints))


def test_a_released_slider_soon_changes_a_token(tab: Tab, served: Demo, figures: Figures) -> None:
    visit = tab().open(f"/steer?{steer_link('One day', max=32)}")
    generate(visit)
    waits = []
    for turn in range(RELEASES):
        article = side(visit, "Steered")
        article.evaluate(WATCH_RELEASE)
        drag(strength(visit, "sea"), 0.06 if turn % 2 == 0 else 0.94)
        waits.append(float(visit.page.evaluate("window.released")))
        complete(visit)
    figures.add("slider_to_changed_token_ms", statistics.median(waits), all=rounded(waits))


def test_ten_thousand_chips_scroll_smoothly(tab: Tab, served: Demo, figures: Figures) -> None:
    visit = tab()
    visit.page.route("**/v1/completions", lengthened)
    visit.open("/tokens")
    visit.button("Read the text").click()
    chips = visit.page.get_by_role("listbox", name="Tokens of the text")
    expect(chips.get_by_role("option")).to_have_count(CHIPS)
    scrolled = chips.evaluate(SCROLL)
    assert scrolled["end"] > CHIPS
    times = scrolled["times"]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    figures.add(
        "scroll_frames_per_second",
        1000 * len(gaps) / (times[-1] - times[0]),
        chips=CHIPS,
        slowest_frame_ms=round(max(gaps), 1),
    )


def test_open_pages_ask_for_little(tab: Tab, served: Demo, figures: Figures) -> None:
    served.data("POST", "/api/monitoring/configure", {"enabled": True, "top_k": 12})
    visits = [tab().open(path) for path in OPENED]
    requests: list[str] = []
    for visit in visits:
        visit.page.on("request", lambda request: requests.append(urlsplit(request.url).path))
    before = served.processor_seconds()
    visits[0].page.wait_for_timeout(1000 * IDLE_SECONDS)
    used = served.processor_seconds() - before
    figures.add(
        "requests_per_second",
        len(requests) / IDLE_SECONDS,
        pages=OPENED,
        service_processor_percent=round(100 * used / IDLE_SECONDS, 2),
        all=dict(Counter(requests).most_common()),
    )
    assert len(requests) <= MOST_REQUESTS


@only_measures
@pytest.mark.skipif(
    not latency.can_be_apart(), reason="needs two processors, and a system that pins processes"
)
def test_open_pages_hardly_slow_the_service(tab: Tab, tmp_path: Path, figures: Figures) -> None:
    """The service has processors of its own, as one that is visited over a network has."""
    with latency.apart(tmp_path) as served:
        note_growth(figures, "latency_growth_percent", served, tab)


@only_measures
def test_open_pages_slow_a_service_beside_the_browser(
    tab: Tab, served: Demo, figures: Figures
) -> None:
    """The browser takes time of the processors on which the engine computes."""
    note_growth(figures, "latency_growth_beside_browser_percent", served, tab)


def note_growth(figures: Figures, name: str, served: Demo, tab: Tab) -> None:
    """Tabs are open in all turns, because a browser takes time of the processor by itself."""
    served.data("POST", "/api/monitoring/configure", {"enabled": True, "top_k": 12})
    visits = [tab(served) for _ in OPENED]

    def show(with_pages: bool) -> None:
        for visit, path in zip(visits, OPENED, strict=True):
            if with_pages:
                visit.open(path)
            else:
                visit.page.goto(BLANK)
        visits[0].page.wait_for_timeout(1000 * REST_SECONDS)

    turns = latency.measured(served, show)
    figures.add(name, turns.growth(), pages=OPENED, **turns.described())
    for visit in visits:
        visit.page.context.close()


def drag(slider: Locator, part: float) -> None:
    """Press the slider, draw it to a part of its width, and release it."""
    box = slider.bounding_box()
    assert box is not None
    mouse, height = slider.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] / 2, height)
    mouse.down()
    mouse.move(box["x"] + box["width"] * part, height)
    mouse.up()


def lengthened(route: Route) -> None:
    """The real answer for a text, repeated until it has as many tokens as are drawn."""
    answer = route.fetch()
    body: dict[str, Any] = answer.json()
    size = body["usage"]["prompt_tokens"]
    scores = body["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs"):
        scores[name] = [scores[name][place % size] for place in range(CHIPS)]
    read = body["service"]["sae_activations"]
    positions = read["positions"]
    read["positions"] = [
        positions[place % len(positions)] | {"position": place} for place in range(CHIPS)
    ]
    body["usage"]["prompt_tokens"] = CHIPS
    route.fulfill(response=answer, json=body)


def rounded(values: list[float], factor: float = 1.0) -> list[float]:
    return [round(value * factor, 3) for value in values]
