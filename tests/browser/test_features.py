"""The Features page: what a feature writes, and which features write a word."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo


def sea(served: Demo) -> tuple[dict[str, Any], str]:
    """The feature of the sea as requests name it, and its page."""
    (sae, *_) = served.data("GET", "/api/saes/attachments")["entries"]
    index = demo.proof()["feature_idx"]
    lever = {"index": index, "sae_id": sae["sae_id"], "layer": sae["layer"]}
    return lever, f"/features/{sae['sae_id']}/{sae['layer']}/{index}"


def test_a_feature_shows_what_it_does_over_a_corpus(tab: Tab, served: Demo) -> None:
    _, path = sea(served)
    visit = tab().open(path)
    strongest = visit.page.get_by_role("list", name="Strongest examples").get_by_role("listitem")
    expect(strongest.first).to_contain_text("lighthouse")
    expect(strongest.first.locator("mark[data-at]")).to_have_count(1)
    assert not visit.violations()


def test_the_page_opens_with_features_and_the_texts_in_which_they_are_strongest(tab: Tab) -> None:
    visit = tab().open("/features")
    some = visit.page.get_by_role("list", name="Some features, and where each is strongest")
    shown = some.get_by_role("listitem")
    expect(shown).to_have_count(8)
    expect(some.locator("mark[data-at]")).to_have_count(8)
    before = shown.first.inner_text()
    visit.button("Show others").click()
    expect(shown.first).not_to_have_text(before)
    expect(shown).to_have_count(8)
    visit.page.get_by_role("searchbox").fill("sea")
    expect(visit.page.get_by_role("link", name="sea", exact=True)).to_be_visible()


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
    lever, _ = sea(served)
    facts = served.data("GET", f"/api/saes/{lever['sae_id']}/features/{lever['index']}")
    promoted = page.get_by_role("list", name="Promotes").get_by_role("listitem")
    expect(promoted.first).to_contain_text(facts["promotes"][0]["token"].strip())
    expect(promoted).to_have_count(len(facts["promotes"]))


def test_the_effect_of_a_feature_is_measured(tab: Tab, served: Demo) -> None:
    lever, path = sea(served)
    asked = {
        "feature": lever,
        "strengths": [20, 100],
        "prompts": ["The boats came back to the"],
        "tokens": 8,
        "target": {"words": ["sea"], "control": ["farm"]},
        "random_directions": 1,
    }
    job = served.data("POST", "/api/effects?wait=true", asked)["job"]
    visit = tab().open(f"{path}?effects={job['id']}&words=sea&control=farm")
    page = visit.page
    curve = page.get_by_role("img", name="KL to the plain model")
    expect(curve).to_be_visible()
    expect(page.get_by_role("img", name="Log-probability that a word begins")).to_be_visible()
    assert not visit.violations()
    visit.check_narrow()


def test_a_kept_measurement_is_opened_and_becomes_evidence(tab: Tab, served: Demo) -> None:
    lever, path = sea(served)
    asked = {
        "feature": lever,
        "strengths": [20],
        "prompts": ["The boats came back to the"],
        "tokens": 4,
        "random_directions": 0,
    }
    kept = served.data("POST", "/api/effects?wait=true", asked)["job"]["result"]["id"]
    served.data("POST", "/api/profiles/save-current", {"name": "calm sea"})
    visit = tab().open(path)
    page = visit.page
    visit.button(f"Open the measurement {kept}").click()
    expect(page.get_by_role("img", name="KL to the plain model")).to_be_visible()
    page.get_by_role("combobox", name="Make it evidence for").select_option("calm sea")
    expect(visit.button("Remove the evidence for calm sea")).to_be_visible()
    (told,) = served.data("GET", "/api/effects")["effects"]
    assert [one["name"] for one in told["evidence_for"]] == ["calm sea"]
    assert not visit.violations()
    visit.check_narrow()
    visit.button(f"Delete the measurement {kept}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("A measurement is kept here when it is done.")).to_be_visible()
    assert served.data("GET", "/api/effects")["total"] == 0


def test_a_measurement_leads_to_the_strength_that_it_suggests(tab: Tab, served: Demo) -> None:
    lever, path = sea(served)
    asked = {
        "feature": lever,
        "strengths": [5],
        "tokens": 8,
        "random_directions": 0,
    }
    job = served.data("POST", "/api/effects?wait=true", asked)["job"]
    assert job["result"]["suggested"]["largest_unbroken"] == 5
    visit = tab().open(f"{path}?effects={job['id']}")
    visit.page.get_by_role("link", name="Steer at 5.0").click()
    expect(visit.heading).to_contain_text("Steer")
    served.data("DELETE", f"/api/effects/{job['result']['id']}")


def test_a_measurement_is_begun_and_cancelled_on_the_page(tab: Tab, served: Demo) -> None:
    _, path = sea(served)
    visit = tab().open(path)
    page = visit.page
    page.get_by_role("textbox", name="Words to look for").fill("sea, boat")
    visit.button("Measure").click()
    visit.button("Cancel").click()
    expect(page.get_by_text("The measurement was cancelled.")).to_be_visible()
