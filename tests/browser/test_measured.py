"""How fast the page is, and what open pages cost the service: a benchmark, whose times no test asserts.

What is asserted is seen, or is a number of requests. `KEEP=1 make test-browser` on a quiet machine keeps the figures.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.figures import KEEP, Figures
from tests.browser.service import Demo
from tests.browser.steering import complete, generate, side, steer_link, strength

VISITS = 7 if KEEP else 2
RELEASES = 8 if KEEP else 2
CHIPS = 10_000
ROUNDS, STREAMS = (4, 4) if KEEP else (1, 2)
"""In each round, the same streams are timed beside blank tabs, then beside the pages."""
OPENED = ("/steer", "/live", "/sensing", "/health")
BLANK = "about:blank"
IDLE_SECONDS = 20
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


def test_open_pages_hardly_slow_the_service(tab: Tab, served: Demo, figures: Figures) -> None:
    """Tabs are open in both cases, because a browser takes time of the processor by itself."""
    served.data("POST", "/api/monitoring/configure", {"enabled": True, "top_k": 12})
    visits = [tab() for _ in OPENED]
    times: dict[str, list[float]] = {"blank": [], "pages": []}
    used: dict[str, float] = {"blank": 0, "pages": 0}
    for turn in range(ROUNDS):
        for name, seconds in times.items():
            for visit, path in zip(visits, OPENED, strict=True):
                if name == "pages":
                    visit.open(path)
                else:
                    visit.page.goto(BLANK)
            seconds_per_token(served, 0)
            before = served.processor_seconds()
            seconds += [seconds_per_token(served, STREAMS * turn + seed) for seed in range(STREAMS)]
            used[name] += served.processor_seconds() - before
    ratios = [after / before for before, after in zip(times["blank"], times["pages"], strict=True)]
    figures.add(
        "latency_growth_percent",
        100 * (statistics.median(ratios) - 1),
        pages=OPENED,
        milliseconds_per_token={
            name: round(1000 * statistics.median(seconds), 3) for name, seconds in times.items()
        },
        service_processor_growth_percent=round(100 * (used["pages"] / used["blank"] - 1), 2),
        all={name: rounded(seconds, 1e3) for name, seconds in times.items()},
    )


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


def seconds_per_token(served: Demo, seed: int) -> float:
    """The mean time between the first and the last piece of a stream. The same seed writes the same text."""
    body = {
        "model": demo.MODEL_NAME,
        "prompt": "One day",
        "max_tokens": 250,
        "temperature": 1.9,
        "seed": seed,
        "stream": True,
    }
    times = []
    with served.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                times.append(time.perf_counter())
    return (times[-1] - times[0]) / (len(times) - 1)


def rounded(values: list[float], factor: float = 1.0) -> list[float]:
    return [round(value * factor, 3) for value in values]
