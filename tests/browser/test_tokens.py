"""The Tokens page: what each layer says about the next token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from tests.browser.conftest import Tab
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
    visit.check_narrow()


def test_a_trained_lens_is_registered_and_read_with(tab: Tab, served: Demo, tmp_path: Path) -> None:
    (sae, *_) = served.data("GET", "/api/saes")["saes"]
    file = tmp_path / "lens.pt"
    torch.save({"J": {layer: torch.eye(sae["d_in"]) for layer in (0, 2)}}, file)
    visit = tab().open("/tokens")
    page = visit.page
    visit.button("Read the text").click()
    page.get_by_text("Trained lenses", exact=True).click()
    page.get_by_role("textbox", name="Name").fill("identity")
    page.get_by_role("textbox", name="Folder or file on the machine").fill(str(file))
    visit.button("Register").click()
    expect(page.get_by_role("combobox", name="Lens")).to_contain_text("identity")
    expect(page.get_by_role("heading", name="Trained lens", exact=True)).to_be_visible()
    visit.button("Read the layers").click()
    grid = page.get_by_role("group", name="The most probable next token after each layer")
    rows = grid.get_by_role("rowheader")
    expect(rows.first).to_be_visible()
    last = len(served.data("POST", "/api/lens", {"text": "a", "top": 1})["layers"]) - 1
    assert rows.all_text_contents() == [f"layer {layer}" for layer in (last, 2, 0)]
    assert not visit.violations()
    visit.check_narrow()
    visit.button("Delete the lens identity").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("combobox", name="Lens")).to_have_count(0)
    assert served.data("GET", "/api/lenses")["total"] == 0
