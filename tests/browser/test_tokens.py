"""The Tokens page: what each layer says about the next token."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Tab
from tests.browser.service import Demo


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lens_shows_what_the_service_answers(tab: Tab, served: Demo, scheme: str) -> None:
    text = "The boats came back to the"
    visit = tab(color_scheme=scheme).open("/tokens")
    page = visit.page
    page.get_by_role("textbox", name="Text to read").fill(text)
    visit.button("Read the text").click()
    visit.button("Read the layers").click()
    grid = page.get_by_role("group", name="The most probable next token after each layer")
    answer = served.data("POST", "/api/lens", {"text": text, "top": 1})
    expect(grid.get_by_role("row")).to_have_count(len(answer["layers"]) + 1)
    (best,) = answer["layers"][-1]["positions"][-1]
    last = grid.get_by_role("row").nth(1).get_by_role("cell").last
    expect(last).to_contain_text(best["token"].strip())
    grid.get_by_role("button").first.press("Enter")
    expect(page.get_by_role("heading", name="token 0", exact=False)).to_be_visible()
    assert not visit.violations()
    page.set_viewport_size(NARROW)
    assert visit.overflow() <= 0
