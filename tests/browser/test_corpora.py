"""The Corpora page: a file becomes what features do over it, and the page of a feature says it."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo

LINES = [
    "The boat sailed over the waves",
    "A whale swam near the ship while the sailor saw the lighthouse",
    "The king sat on the throne",
]


def test_a_dropped_file_is_read_and_deleted_again(tab: Tab, served: Demo, tmp_path: Path) -> None:
    file = tmp_path / "boats.jsonl"
    file.write_text("".join(json.dumps({"story": line}) + "\n" for line in LINES))
    visit = tab().open("/corpora")
    page = visit.page
    expect(page.get_by_text("stories of the demo", exact=True)).to_be_visible()
    choose = page.get_by_label("Texts from a file")
    choose.set_input_files(file)
    expect(page.get_by_text('boats.jsonl: Line 1 has no field "text".')).to_be_visible()
    page.get_by_label("Field of JSON Lines").fill("story")
    choose.set_input_files(file)
    page.get_by_label("Name", exact=True).fill("boats")
    assert not visit.violations()
    visit.button("Read them").click()
    row = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="boats"))
    expect(row.get_by_text("done", exact=True)).to_be_visible()
    visit.check_narrow()
    row.get_by_role("link").first.click()
    proof, sae = demo.proof(), served.data("GET", "/api/saes/attachment")["sae_id"]
    visit.open(f"/features/{sae}/{proof['layer']}/{proof['feature_idx']}")
    page.get_by_role("combobox", name="Corpus").select_option("boats")
    strongest = page.get_by_role("list", name="Strongest examples").get_by_role("listitem")
    expect(strongest.first).to_contain_text("sailor")
    visit.open("/corpora")
    visit.button("Delete boats").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_the_features_of_a_text_begin_with_what_it_is_about(tab: Tab) -> None:
    visit = tab().open("/tokens")
    page = visit.page
    page.get_by_role("textbox", name="Text to read").fill(
        "One evening, a sailor sailed past the lighthouse. The sea was as smooth as glass, and a seagull cried above "
        "the shore."
    )
    visit.button("Read the text").click()
    listed = page.get_by_role("list", name="Strongest features of the text").get_by_role("listitem")
    expect(page.get_by_role("radio", name="rarity")).to_be_checked()
    first = [one.locator(".bar-label").inner_text() for one in listed.all()[:3]]
    assert "sea" in first
