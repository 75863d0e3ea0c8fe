"""The Runs page: an answer that was recorded comes out the same when it is made again."""

from __future__ import annotations

from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo


def test_a_recorded_answer_is_made_again_and_exported(tab: Tab, served: Demo) -> None:
    proof = demo.proof()
    values = {"feature_idx": proof["feature_idx"], "value": proof["strength"]}
    served.data("POST", "/api/saes/steering", values)
    answer = served.write("One day the", max_tokens=20)
    served.data("DELETE", "/api/saes/steering")
    visit = tab().open(f"/runs?id={answer['id']}")
    page = visit.page
    written = page.get_by_role("list", name="Answer")
    expect(written).to_contain_text(answer["choices"][0]["text"].strip())
    place = f"{proof['layer']}:{proof['feature_idx']}"
    expect(page.get_by_role("list", name="Features")).to_contain_text(place)
    visit.button("Make it again").click()
    expect(page.get_by_text("The same answer.")).to_be_visible()
    assert not visit.violations()
    with page.expect_download() as saved:
        visit.button("Export all").click()
    assert saved.value.suggested_filename == "runs.jsonl"
    assert answer["id"] in saved.value.path().read_text()
    visit.check_narrow()
