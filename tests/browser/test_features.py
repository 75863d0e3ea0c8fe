"""The Features page: what a feature writes, and which features write a word."""

from __future__ import annotations

from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo


def test_a_feature_is_found_by_a_word_that_it_promotes(tab: Tab, served: Demo) -> None:
    visit = tab().open("/features")
    page = visit.page
    page.get_by_role("radio", name="Promoted tokens").check(force=True)
    page.keyboard.press("/")
    page.keyboard.type("waves")
    page.keyboard.press("Enter")
    found = page.get_by_role("list", name="Features that promote waves")
    expect(found.get_by_role("link", name="sea", exact=True)).to_be_visible()
    assert not visit.violations()
    found.get_by_role("link", name="sea", exact=True).click()
    expect(visit.heading).to_contain_text("sea")
    index = demo.proof()["feature_idx"]
    (sae, *_) = served.data("GET", "/api/saes/attachments")["entries"]
    facts = served.data("GET", f"/api/saes/{sae['sae_id']}/features/{index}")
    promoted = page.get_by_role("list", name="Promotes").get_by_role("listitem")
    expect(promoted.first).to_contain_text(facts["promotes"][0]["token"].strip())
    expect(promoted).to_have_count(len(facts["promotes"]))
