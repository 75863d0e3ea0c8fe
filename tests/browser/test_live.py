"""The page Live: it moves with every answer, and stands still while it is paused."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.service import Demo

SEA = 90


def test_the_chart_moves_with_every_answer_and_not_while_it_is_paused(
    tab: Tab, served: Demo
) -> None:
    visit = tab().open(f"/live?pins={SEA}")
    page = visit.page
    visit.button("Switch monitoring on").click()
    expect(
        page.get_by_text("Monitoring is on, and no answer was completed yet.", exact=False)
    ).to_be_visible()
    served.write()
    bars = page.get_by_role("list", name="Features at the last token of the newest answer")
    expect(bars.get_by_role("listitem").first).to_be_visible()
    expect(page.get_by_role("img", name="last 1 answers")).to_be_visible()
    before = page.get_by_role("img", name="last 1 answers").screenshot()
    served.write("In the morning he rode over the drawbridge of the castle")
    chart = page.get_by_role("img", name="last 2 answers")
    expect(chart).to_be_visible()
    assert chart.screenshot() != before
    for rank in ("rarity", "value"):
        page.get_by_role("radio", name=rank).check(force=True)
        history = served.data("GET", f"/api/monitoring/history?limit=1&rank={rank}")
        first = history["records"][0]["top_k"][0]
        expect(bars.get_by_role("listitem").first).to_contain_text(f"{first['activation']:.2f}")
    visit.button("Pause").click()
    served.write()
    expect(page.get_by_text("paused, 1 new")).to_be_visible()
    expect(page.get_by_role("img", name="last 2 answers")).to_be_visible()
    visit.button("Go on").click()
    expect(page.get_by_role("img", name="last 3 answers")).to_be_visible()
