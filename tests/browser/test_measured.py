"""How fast the page is, and what open pages cost the service."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.figures import Figures
from tests.browser.service import Demo
from tests.browser.steering import complete, generate, side, steer_link, strength

VISITS = 7
RELEASES = 8
CHIPS = 10_000
STREAMS = 6
"""Streams that are timed in each of two rounds without pages, and as many with them."""
OPENED = ("/steer", "/live", "/sensing", "/health")
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


def test_open_pages_hardly_slow_the_service(tab: Tab, served: Demo, figures: Figures) -> None:
    served.data("POST", "/api/monitoring/configure", {"enabled": True, "top_k": 12})
    alone: list[float] = []
    watched: list[float] = []
    seconds_per_token(served, 0)
    for turn in range(2):
        alone += [seconds_per_token(served, seed + STREAMS * turn) for seed in range(STREAMS)]
        visits = [tab() for _ in OPENED]
        for visit, path in zip(visits, OPENED, strict=True):
            visit.open(path)
        seconds_per_token(served, 0)
        watched += [seconds_per_token(served, seed + STREAMS * turn) for seed in range(STREAMS)]
        for visit in visits:
            visit.page.context.close()
    before, after = statistics.median(alone), statistics.median(watched)
    figures.add(
        "latency_growth_percent",
        100 * (after / before - 1),
        pages=OPENED,
        milliseconds_per_token={"none": round(before * 1000, 3), "four": round(after * 1000, 3)},
        all={"none": rounded(alone, 1e3), "four": rounded(watched, 1e3)},
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
