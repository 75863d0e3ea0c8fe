"""What holds for every page of the navigation: accessible in dark and light, narrow, reached by keys."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest
from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import WIDE, Tab
from tests.browser.service import Demo
from tests.browser.visit import NARROW, Entry, Visit, entries

PAGES = entries()
by_path = pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.path)


@by_path
def test_axe_finds_nothing_in_either_scheme(tab: Tab, served: Demo, entry: Entry) -> None:
    served.live_in()
    visit = tab(color_scheme="light").open(entry.path)
    assert not visit.violations()
    visit.page.emulate_media(color_scheme="dark")
    assert not visit.violations()


@by_path
def test_a_narrow_window_shows_all_of_the_page_without_scrolling_sideways(
    tab: Tab, served: Demo, entry: Entry
) -> None:
    served.live_in()
    visit = tab(viewport=NARROW).open(entry.path)
    assert visit.overflow() <= 0


OUTSIDE = """
() => {
  const box = (node) => node.getBoundingClientRect();
  const isOut = (node) => {
    const panel = node.closest(".panel, .strip, .banner");
    return panel !== null && !node.closest(".scroll-x, pre, .only-read") && box(node).right > box(panel).right + 1;
  };
  const seen = [...document.querySelectorAll("body *:not(svg *)")].filter((node) => node.checkVisibility());
  return seen.filter(isOut).map((node) => node.outerHTML.slice(0, 120));
}
"""
"""The elements that stand out of their panels."""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_names_stay_inside_their_panels(tab: Tab, served: Demo, size: dict[str, int]) -> None:
    long = "W" * 100
    served.live_in()
    profile = served.data("POST", "/api/profiles", {"name": long, "steering": {"90": 5}})["id"]
    served.data("POST", f"/api/profiles/{profile}/activate")
    loaded = served.data("GET", "/api/models")["loaded_model_id"]
    terms = {"holder": long, "reason": long, "ttl_seconds": 300}
    lease = served.data("POST", f"/api/models/{loaded}/lease", terms)["lease_id"]
    body = {
        "source": "local",
        "local_path": str(demo.MODEL_DIR),
        "quantization": "Q8",
        "custom_name": long,
    }
    model = served.data("POST", "/api/models", body)["id"]
    try:
        visit = tab(viewport=size)
        found = {}
        for entry in PAGES:
            visit.open(entry.path)
            found[entry.path] = (visit.page.evaluate(OUTSIDE), max(0, visit.overflow()))
        assert found == {entry.path: ([], 0) for entry in PAGES}
    finally:
        served.data("DELETE", f"/api/models/{model}")
        path, headers = f"/api/models/{loaded}/lease", {"X-Service-Lease": lease}
        assert served.http.delete(path, headers=headers).status_code == 200


STYLES = """
() => {
  const named = (node) => `${node.localName}.${[...node.classList].join(".")}`;
  const path = (node) => (node.id === "main" ? "" : `${path(node.parentElement)} ${named(node)}`);
  const found = {};
  for (const node of document.querySelectorAll("#main *:not(svg *)")) {
    // what is new is drawn in another way for some seconds
    if (!node.checkVisibility({ contentVisibilityAuto: true }) || node.matches("[data-new]")) continue;
    const style = getComputedStyle(node);
    const names = ["display", "padding", "margin", "gap", "minInlineSize", "minBlockSize", "fontSize", "borderWidth"];
    if (node.matches("input, select")) names.push("inlineSize");
    (found[path(node)] ??= new Set()).add(names.map((name) => `${name}: ${style[name]}`).join("; "));
  }
  return Object.fromEntries(Object.entries(found).map(([key, styles]) => [key, [...styles].sort()]));
}
"""
"""The styles of the visible elements of the page by their place, whatever they show."""


def styles(visit: Visit) -> dict[str, list[str]]:
    """The styles of the page, once it has drawn what it was waiting for: two readings with idle time between are
    equal."""
    before = visit.page.evaluate(STYLES)
    while True:
        visit.page.evaluate("() => new Promise((drawn) => requestIdleCallback(drawn))")
        now: dict[str, list[str]] = visit.page.evaluate(STYLES)
        if now == before:
            return now
        before = now


def test_no_page_changes_the_styles_of_another_one(tab: Tab, served: Demo) -> None:
    served.live_in()
    visit = tab()
    alone = {}
    for entry in PAGES:
        visit.open(entry.path, wait=False).page.reload()
        visit.settled()
        alone[entry.path] = styles(visit)
    # a page that was left keeps its styles loaded
    for entry in PAGES:
        visit.open(entry.path)
    for entry in PAGES:
        later = styles(visit.open(entry.path))
        # a place may show more or fewer things than before; a style that came from another page changes all of them
        changed = {
            place: (before, later[place])
            for place, before in alone[entry.path].items()
            if place in later and not set(before) & set(later[place])
        }
        assert not changed, f"{entry.path}: {changed}"


def test_every_page_leads_to_the_licences_of_its_packages(tab: Tab) -> None:
    visit = tab().open(PAGES[0].path)
    link = visit.page.get_by_role("contentinfo").get_by_role("link", name="Licences")
    answer = visit.page.request.get(urljoin(visit.page.url, link.get_attribute("href")))
    assert answer.ok
    assert "react-dom" in answer.text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_one_feature_is_accessible_and_fits_a_narrow_window(
    tab: Tab, served: Demo, scheme: str
) -> None:
    served.live_in()
    (first, *_) = served.data("GET", "/api/saes/attachments")["entries"]
    index = demo.proof()["feature_idx"]
    visit = tab(color_scheme=scheme)
    visit.open(f"/features/{first['sae_id']}/{first['layer']}/{index}")
    expect(visit.heading).to_contain_text("sea")
    assert not visit.violations()
    visit.check_narrow()


def test_keys_lead_to_every_page_and_the_list_of_keys_names_them(tab: Tab) -> None:
    visit = tab().open(PAGES[0].path)
    page = visit.page
    for entry in reversed(PAGES):
        page.keyboard.press("g")
        page.keyboard.press(entry.key)
        expect(page).to_have_url(re.compile(f"#{entry.path}"))
        expect(visit.heading).to_be_visible()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog")
    expect(keys).to_be_visible()
    for entry in PAGES:
        expect(keys.get_by_text(f"Go to {entry.title}", exact=True)).to_be_visible()
    assert not visit.violations()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()


def test_the_theme_is_switched_and_remembered(tab: Tab) -> None:
    visit = tab(color_scheme="light").open(PAGES[0].path)
    page = visit.page
    page.keyboard.press("t")
    expect(visit.button("Switch to light")).to_be_visible()
    page.reload()
    expect(visit.button("Switch to light")).to_be_visible()
