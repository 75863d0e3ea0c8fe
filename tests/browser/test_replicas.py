"""The replicas of the loaded model on the page Models: a person sees them, and changes them while they serve."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.visit import NARROW, Visit
from tests.local_cluster import LocalCluster
from tests.nouns.replicas.test_replicated_model import BASE, Replicated, by_name
from tests.service import Running, add_sae, load_demo, running

NAME = demo.MODEL_NAME
PATIENCE = 90.0
STILL_SECONDS = 600.0
"""An engine that a test stops is not ended meanwhile, and neither is a replica that drains."""


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    return LocalCluster()


@pytest.fixture(scope="module")
def replicated(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicated]:
    home = tmp_path_factory.mktemp("replicated")
    settings: dict[str, Any] = {
        "engine_backend": "ray",
        "engine_replicas": 2,
        "engine_stall_timeout": STILL_SECONDS,
        "graceful_unload_timeout": STILL_SECONDS,
    }
    with running(home, cluster, **settings) as live:
        load_demo(live)
        sae = demo.saes()[0]
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})
        yield Replicated(live, PATIENCE)


@pytest.fixture
def live(replicated: Replicated, cluster: LocalCluster) -> Running:
    """The service, with two replicas that serve."""
    cluster.refusal = cluster.free_host_mb = None
    replicated.live.data("PUT", BASE, {"count": 2}, 202)
    replicated.whole(2)
    return replicated.live


def list_of(visit: Visit) -> Locator:
    return visit.page.get_by_role("region", name=f"Replicas of {NAME}")


def row_of(visit: Visit, name: str) -> Locator:
    return list_of(visit).get_by_role("listitem", name=name, exact=True)


def status(visit: Visit, name: str, word: str) -> Locator:
    """The sign and the word for what a replica does."""
    return row_of(visit, name).get_by_text(re.compile(rf"^\S {word}$"))


def rows(live: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = live.data("GET", BASE)["replicas"]
    return found


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The engine stands still inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_replicas_are_shown_added_replaced_and_taken_away(
    tab: Tab, live: Running, cluster: LocalCluster
) -> None:
    visit = tab(live).open("/models")
    part = list_of(visit)
    expect(part.get_by_text("2 of 2 serve", exact=True)).to_be_visible()
    expect(part.get_by_role("listitem")).to_have_count(2)
    for one in rows(live):
        expect(status(visit, one["name"], "serving")).to_be_visible()
        expect(row_of(visit, one["name"]).get_by_text(one["node"], exact=True)).to_be_visible()

    visit.button(f"More replicas of {NAME}").click()
    expect(part.get_by_text("3 of 3 serve", exact=True)).to_be_visible()
    expect(part.get_by_role("listitem")).to_have_count(3)

    first, second, _ = (one["name"] for one in rows(live))
    visit.button(f"Replace {first}").click()
    expect(row_of(visit, first)).to_have_count(0)
    expect(part.get_by_text("3 of 3 serve", exact=True)).to_be_visible()

    visit.button(f"Drain {second}").click()
    expect(row_of(visit, second)).to_have_count(0)
    expect(part.get_by_text("2 of 2 serve", exact=True)).to_be_visible()
    assert len(cluster.alive) == 2

    visit.button(f"Fewer replicas of {NAME}").click()
    expect(part.get_by_text("1 of 1 serves", exact=True)).to_be_visible()
    expect(part.get_by_role("listitem")).to_have_count(1)
    expect(part.get_by_role("button", name="Drain")).to_be_disabled()
    expect(visit.button(f"Fewer replicas of {NAME}")).to_be_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lost_and_draining_replicas_are_told_apart_in_every_window(
    tab: Tab, live: Running, replicated: Replicated, cluster: LocalCluster, scheme: str
) -> None:
    live.data("PUT", BASE, {"count": 3}, 202)
    now = by_name(replicated.whole(3))
    visit = tab(live, color_scheme=scheme).open("/models")
    body = {"model": NAME, "prompt": ["One day"] * 32, "max_tokens": 900, "temperature": 2.0}
    with live.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        lines = answer.iter_lines()  # kept, because the connection ends with it
        next(lines)
        busy = next(one["name"] for one in rows(live) if one["requests"])
        lost = next(name for name in now if name != busy)
        with stopped(now[busy]["pid"]):
            visit.button(f"Drain {busy}").click()
            expect(status(visit, busy, "draining")).to_be_visible()
            expect(row_of(visit, busy).get_by_text(re.compile(r"^[1-9]\d* of 8$"))).to_be_visible()
            cluster.refusal = "no node has room for it"
            os.kill(now[lost]["pid"], signal.SIGKILL)
            expect(list_of(visit).get_by_text("1 of 2 serve", exact=True)).to_be_visible()
            expect(status(visit, lost, "lost")).to_be_visible()
            expect(row_of(visit, lost).get_by_text("no node has room for it")).to_be_visible()
            assert visit.violations() == []
            for window in ({"width": 1280, "height": 900}, NARROW):
                visit.page.set_viewport_size(window)  # type: ignore[arg-type]
                assert visit.overflow() <= 0
        cluster.refusal = None
    expect(row_of(visit, busy)).to_have_count(0)
    expect(row_of(visit, lost).get_by_text("Last fault: no node has room for it")).to_be_visible()
    expect(list_of(visit).get_by_text("2 of 2 serve", exact=True)).to_be_visible()


def test_a_number_for_which_no_node_has_memory_is_refused_in_words(
    tab: Tab, live: Running, cluster: LocalCluster
) -> None:
    visit = tab(live)
    visit.allow("status of 507")
    visit.open("/models")
    before = rows(live)
    cluster.free_host_mb = 1
    visit.button(f"More replicas of {NAME}").click()
    refusal = list_of(visit).get_by_role("alert")
    expect(refusal.get_by_text("INSUFFICIENT_MEMORY", exact=True)).to_be_visible()
    expect(refusal.get_by_text("east: the model does not fit")).to_be_visible()
    assert visit.overflow() <= 0
    visit.check_narrow()
    expect(list_of(visit).get_by_text("2 of 2 serve", exact=True)).to_be_visible()
    assert [one["pid"] for one in rows(live)] == [one["pid"] for one in before]


def test_a_replica_that_none_can_stand_in_for_is_kept_and_the_reason_is_said(
    tab: Tab, live: Running, replicated: Replicated
) -> None:
    visit = tab(live)
    visit.allow("status of 409")
    live.data("PUT", BASE, {"count": 1}, 202)
    (only,) = replicated.until(lambda now: len(now["replicas"]) == 1)["replicas"]
    visit.open("/models")
    with stopped(only["pid"]):
        expect(list_of(visit).get_by_text("0 of 1 serves", exact=True)).to_be_visible()
        expect(status(visit, only["name"], "stalled")).to_be_visible()
        visit.button(f"Drain {only['name']}").click()
        refusal = list_of(visit).get_by_role("alert")
        expect(refusal.get_by_text("REPLICAS_UNAVAILABLE", exact=True)).to_be_visible()
        expect(refusal.get_by_text("no other replica serves; unload the model")).to_be_visible()
        visit.check_narrow()
    expect(list_of(visit).get_by_text("1 of 1 serves", exact=True)).to_be_visible()
