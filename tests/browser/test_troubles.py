"""The service fails under an open page: the page says so, and recovers by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.service import Demo, wait_for
from tests.browser.steering import generate, steer_link

PROVOKED = "ERR_|WebSocket|status of 50|status of 400 .*/api/saes/steering"
"""What Chromium says of requests to a service that is gone, or that has no SAE attached yet."""


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo that a test may stop or hurt."""
    served = Demo(tmp_path_factory.mktemp("fragile"))
    yield served
    served.close()


def test_a_page_outlives_a_restart_of_the_service_and_says_what_is_gone(
    tab: Tab, fragile: Demo
) -> None:
    model = fragile.data("GET", "/api/models")["loaded_model_id"]
    fragile.data("POST", "/api/saes/steering", {"feature_idx": 90, "value": 5})
    fragile.data("POST", f"/api/models/{model}/lease", {"holder": "lab", "reason": "a sweep"})
    visit = tab(fragile)
    visit.allow(PROVOKED)
    visit.open("/health")
    page = visit.page
    expect(visit.strip.get_by_text("1 feature", exact=True)).to_be_visible()
    expect(page.get_by_role("complementary", name="Lease")).to_be_visible()
    fragile.stop()
    expect(visit.connection("not live")).to_be_visible()
    lost = page.get_by_text("Connection lost.", exact=True)
    expect(lost.first).to_be_visible()
    fragile.start()
    wait_for(fragile.answers)
    expect(visit.connection("live")).to_be_visible()
    expect(visit.strip.get_by_text("steerserve-demo", exact=True)).to_be_visible()
    # the demo loads its model and its SAE again, and the SAE locks the model
    gone = "Gone: 1 live value, the lease of lab."
    expect(page.get_by_role("complementary", name="Restart")).to_contain_text(gone)
    expect(lost).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert not visit.violations()


def test_a_comparison_whose_engine_is_killed_says_so_and_the_next_one_is_whole(
    tab: Tab, fragile: Demo
) -> None:
    visit = tab(fragile)
    visit.allow(PROVOKED)
    # with this seed the steered text has hundreds of tokens
    visit.open(f"/steer?{steer_link('One day', max=900, t=1.9, seed=2)}")
    page = visit.page
    visit.button("Generate").click()
    wait_for(fragile.is_busy)
    fragile.kill_engine()
    refusal = page.get_by_role("main").get_by_role("alert")
    expect(refusal.get_by_text("ENGINE_UNAVAILABLE", exact=True)).to_be_visible()
    expect(page.get_by_text("The comparison failed.", exact=True)).to_be_visible()
    page.get_by_role("link", name="Load the model again").click()
    visit.button("Load steerserve-demo").click()
    expect(visit.button("Unload steerserve-demo")).to_be_visible()
    visit.open(f"/steer?{steer_link('One day', max=24)}")
    expect(visit.strip.get_by_text("layer 3", exact=True)).to_be_visible()
    generate(visit)
    expect(refusal).to_have_count(0)
