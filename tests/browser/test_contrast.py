"""The Contrast page, from two groups of texts to a feature on the Steer page."""

from __future__ import annotations

from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.steering import strength


def test_the_feature_of_a_concept_is_found_and_tried(tab: Tab) -> None:
    visit = tab().open("/contrast")
    page = visit.page
    expect(visit.button("Compare")).to_be_enabled()
    page.get_by_role("textbox", name="Texts with the concept").focus()
    page.keyboard.press("ControlOrMeta+Enter")
    table = page.get_by_role("group", name="Features that tell the texts apart").get_by_role(
        "table"
    )
    first = table.get_by_role("row").nth(1)
    expect(first.get_by_role("rowheader")).to_contain_text(f":{demo.proof()['feature_idx']}")
    assert not visit.violations()
    page.reload()
    expect(first.get_by_role("rowheader")).to_contain_text("sea")
    visit.check_narrow()
    visit.button("Steer with sea").click()
    expect(strength(visit, "sea")).to_be_visible()
