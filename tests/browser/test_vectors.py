"""The Vectors page, from a file to an edit on the Steer page, and edits of features there."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo
from tests.browser.steering import generate, side, steer_link, text_of

LAYER = demo.proof()["layer"]


def array(width: int) -> dict[str, Any]:
    """A direction as a file of numpy, which does not say its layer."""
    content = io.BytesIO()
    np.save(content, np.random.default_rng(1).normal(size=width).astype(np.float32))
    return {
        "name": "calm.npy",
        "mimeType": "application/octet-stream",
        "buffer": content.getvalue(),
    }


def test_a_vector_is_trained_from_two_boxes_of_texts(tab: Tab, served: Demo) -> None:
    visit = tab().open("/vectors")
    page = visit.page
    page.get_by_role("textbox", name="Name").first.fill("sea")
    page.get_by_role("textbox", name="Layers").fill(str(LAYER))
    visit.button("Train").click()
    expect(page.get_by_role("heading", name="sea", exact=True)).to_be_visible()
    rows = page.get_by_role("group", name="Figures of each layer").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).get_by_role("cell").first).to_have_text("1.00")
    (made,) = served.data("GET", "/api/vectors")["vectors"]
    assert [one["layer"] for one in made["layers"]] == [LAYER]
    assert not visit.violations()
    visit.check_narrow()


def test_a_vector_is_trained_from_pairs_that_continue_prompts(tab: Tab, served: Demo) -> None:
    visit = tab().open("/vectors")
    page = visit.page
    page.get_by_role("textbox", name="Name").first.fill("harbour")
    page.get_by_role("radio", name="pairs").check()
    boxes = {
        "Texts with the concept": ["the sea", "a ship", "the waves", "a sailor"],
        "Texts without it": ["the farm", "a cow", "the bread", "a king"],
        "Prompts of the pairs, if any": ["She saw", "He drew", "We heard", "I met"],
    }
    for name, lines in boxes.items():
        page.get_by_role("textbox", name=name).fill("\n".join(lines))
    page.get_by_role("combobox", name="Of each example").select_option("mean_completion")
    page.get_by_role("combobox", name="Site").select_option("mlp_out")
    page.get_by_role("textbox", name="Layers").fill(str(LAYER))
    assert not visit.violations()
    visit.check_narrow()
    visit.button("Train").click()
    expect(page.get_by_role("heading", name="harbour", exact=True)).to_be_visible()
    (made,) = served.data("GET", "/api/vectors")["vectors"]
    training = made["training"]
    assert (training["pairs"], training["read"], training["site"]) == (
        4,
        "mean_completion",
        "mlp_out",
    )


def test_a_vector_is_imported_and_steers(tab: Tab, served: Demo) -> None:
    (attached, *_) = served.data("GET", "/api/saes/attachments")["entries"]
    width = served.data("GET", f"/api/saes/{attached['sae_id']}")["d_in"]
    visit = tab().open("/vectors")
    visit.allow("status of 4")
    page = visit.page
    page.get_by_label("Import a vector from files").set_input_files(files=[array(width)])
    outcome = page.get_by_role("list", name="Imported files")
    expect(outcome.get_by_text("INVALID_VECTOR", exact=True)).to_be_visible()
    page.get_by_text("What the file does not say", exact=True).click()
    page.get_by_label("Layer of a file with one direction").fill(str(LAYER))
    visit.button("Import calm.npy again").click()
    expect(page.get_by_role("heading", name="calm", exact=True)).to_be_visible()
    expect(page.get_by_role("list", name="Nearest features")).to_be_visible()
    expect(page.get_by_role("list", name="Promotes").get_by_role("listitem")).to_have_count(10)
    assert not visit.violations()
    with page.expect_download() as download:
        visit.button("Export GGUF").click()
    assert download.value.suggested_filename == "calm.gguf"
    visit.check_narrow()

    page.get_by_role("link", name="Use it").click()
    expect(page.get_by_text("Add 1 × calm", exact=True)).to_be_visible()
    generate(visit)
    report = side(visit, "Steered").get_by_role("list", name="What the edits did")
    expect(report.get_by_role("listitem").first).to_contain_text("acted at")
    assert not visit.violations()
    assert visit.overflow() <= 0
    tokens = side(visit, "Steered").get_by_role("group", name="Tokens at which the edits acted")
    expect(tokens.locator("mark").first).to_be_visible()

    visit.button("Make the edits live…").click()
    page.get_by_role("dialog").get_by_role("button", name="Make live", exact=True).click()
    live = page.get_by_role("region", name="Live edits")
    expect(live.get_by_text("Add 1 × calm", exact=True)).to_be_visible()
    assert served.data("GET", "/api/interventions")["edits"][0]["op"] == "add"
    assert not visit.violations()
    visit.button("Clear the live edits").click()
    expect(
        live.get_by_text("No edit acts on the requests of everybody", exact=False)
    ).to_be_visible()
    assert served.data("GET", "/api/interventions")["edits"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_edit_is_made_without_a_mouse(tab: Tab, served: Demo, scheme: str) -> None:
    visit = tab(color_scheme=scheme).open(f"/steer?{steer_link('Tell me a story.', max=24)}")
    page = visit.page
    visit.button("Add an edit…").press("Enter")
    form = page.get_by_role("dialog", name="Add an edit")
    search = form.get_by_role("combobox", name="Search: Feature")
    search.press_sequentially("sea")
    expect(form.get_by_role("option", name="sea").first).to_be_visible()
    search.press("Enter")
    expect(form.get_by_text("Hold sea at 0.", exact=True)).to_be_visible()
    form.get_by_role("combobox", name="Where").select_option("generated")
    form.get_by_text("The formula", exact=True).press("Enter")
    expect(form.get_by_text("x + (value − a) · d", exact=True)).to_be_visible()
    assert not visit.violations()
    form.get_by_role("button", name="Add the edit").press("Enter")
    words = "Hold sea at 0, at the tokens of the answer"
    expect(page.get_by_role("list").get_by_text(words, exact=True).first).to_be_visible()
    generate(visit)
    held = text_of(visit, "Plain"), text_of(visit, "Steered")
    page.reload()
    generate(visit)
    assert (text_of(visit, "Plain"), text_of(visit, "Steered")) == held
