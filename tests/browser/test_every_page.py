"""What holds for every page of the navigation: accessible in dark and light, narrow, reached by keys."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest
from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import NARROW, Tab
from tests.browser.service import Demo
from tests.browser.visit import Entry, entries

PAGES = entries()
by_path = pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@by_path
def test_axe_finds_nothing(tab: Tab, served: Demo, entry: Entry, scheme: str) -> None:
    served.live_in()
    visit = tab(color_scheme=scheme).open(entry.path)
    assert not visit.violations()


@by_path
def test_a_narrow_window_shows_all_of_the_page_without_scrolling_sideways(
    tab: Tab, served: Demo, entry: Entry
) -> None:
    served.live_in()
    visit = tab(viewport=NARROW).open(entry.path)
    assert visit.overflow() <= 0


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
    visit.page.set_viewport_size(NARROW)
    assert visit.overflow() <= 0


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
