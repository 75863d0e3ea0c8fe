"""The Patch page, from two texts to the edit of one cell on the Steer page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_place_of_a_difference_is_found_and_made_an_edit(tab: Tab, scheme: str) -> None:
    visit = tab(color_scheme=scheme).open("/patch")
    page = visit.page
    page.get_by_role("checkbox", name="hook_z", exact=True).check()
    page.get_by_role("textbox", name="Clean text", exact=True).focus()
    page.keyboard.press("ControlOrMeta+Enter")
    grid = page.get_by_role("grid", name="Patches of resid_post by layer and token")
    expect(grid.get_by_role("rowheader").first).to_contain_text("layer")
    # the last layer has the whole difference at the last token, and nothing of it before
    cells = grid.get_by_role("row").nth(1).get_by_role("gridcell")
    expect(cells.last).to_have_text("100 %")
    expect(cells.nth(1)).to_have_text("·")
    expect(page.get_by_role("grid", name="Patches of hook_z by layer and token")).to_be_visible()
    assert not visit.violations()
    visit.check_narrow()
    cells.last.click()
    page.keyboard.press("ArrowDown")
    opened = page.get_by_role("group", name="The open patch of resid_post")
    expect(opened.get_by_role("heading")).to_contain_text("“ the”")
    opened.get_by_role("link", name="Make this edit in Steer").click()
    edit = page.get_by_text("by that of “The sailor walked to the”, at position").first
    expect(edit).to_be_visible()
    visit.button("Generate").click()
    steered = page.get_by_role("article", name="Steered")
    expect(steered.get_by_text("What the edits did")).to_be_visible()
    expect(steered).to_contain_text("acted at 1 of")
