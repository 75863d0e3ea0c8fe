"""Clusters, circuits and sensing: import by a file, activate, dial, and see what fires."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo, wait_for
from tests.browser.visit import NARROW, Visit


def renamed(file: Path, name: str) -> dict[str, Any]:
    """A document of the demo under another name, as a file to choose."""
    document = json.loads(file.read_text(encoding="utf-8")) | {"name": name}
    content = json.dumps(document).encode()
    return {"name": f"{name}.json", "mimeType": "application/json", "buffer": content}


def import_file(visit: Visit, label: str, file: dict[str, Any]) -> None:
    visit.page.get_by_label(label).set_input_files(files=[file])
    outcome = visit.page.get_by_role("list", name="Imported files")
    expect(outcome.get_by_text("imported", exact=False).first).to_be_visible()
    name = file["name"].removesuffix(".json")
    expect(visit.page.get_by_role("heading", name=name, exact=True)).to_be_visible()


def turn(visit: Visit, name: str, key: str) -> Locator:
    """Press a key on the dial of a document."""
    dial = visit.page.get_by_role("slider", name=f"Intensity of {name}")
    dial.focus()
    visit.page.keyboard.press(key)
    return dial


def test_a_cluster_is_imported_activated_and_dialled(tab: Tab, served: Demo) -> None:
    visit = tab().open("/clusters")
    import_file(visit, "Import a cluster or a bundle from files", renamed(demo.CLUSTER, "harbour"))
    held: list[Route] = []
    visit.page.route("**/activate", lambda route: held.append(route))
    visit.button("Activate").click()
    expect(visit.button("Activating")).to_be_disabled()
    held[0].continue_()
    expect(visit.button("Deactivate")).to_be_visible()
    expect(visit.strip.get_by_text("cluster harbour λ 1.00")).to_be_visible()
    before = served.data("GET", "/api/saes/steering")["values"]
    turn(visit, "harbour", "ArrowLeft")
    expect(visit.strip.get_by_text("cluster harbour λ 0.99")).to_be_visible()
    after = served.data("GET", "/api/saes/steering")["values"]
    assert after == pytest.approx(
        {index: value * 0.99 for index, value in before.items()}, abs=0.01
    )
    turn(visit, "harbour", "Home")
    expect(visit.strip.get_by_text("cluster harbour λ 0.00")).to_be_visible()
    visit.button("Deactivate").click()
    expect(visit.button("Activate")).to_be_visible()


def test_a_circuit_is_imported_activated_and_dialled(tab: Tab, served: Demo) -> None:
    served.attach_all()
    visit = tab().open("/circuits")
    import_file(visit, "Import a circuit from files", renamed(demo.CIRCUIT, "tide"))
    visit.button("Activate").click()
    expect(visit.button("Deactivate")).to_be_visible()
    expect(visit.strip.get_by_text("1 circuit", exact=False)).to_be_visible()
    turn(visit, "tide", "ArrowLeft")
    row = next(
        row for row in served.data("GET", "/api/circuits")["circuits"] if row["name"] == "tide"
    )

    def intensity() -> float:
        return float(served.data("GET", f"/api/circuits/{row['id']}")["intensity"])

    wait_for(lambda: intensity() == 0.99)
    expect(visit.page.get_by_role("main").get_by_text("0.99", exact=True).first).to_be_visible()
    visit.button("Deactivate").click()
    expect(visit.button("Activate")).to_be_visible()


@pytest.mark.parametrize("kind", ["profiles", "clusters", "circuits"])
def test_a_document_shows_the_measurements_that_are_evidence(
    tab: Tab, served: Demo, kind: str
) -> None:
    proof = demo.proof()
    (attached, *_) = served.data("GET", "/api/saes/attachments")["entries"]
    index = proof["feature_idx"]
    asked = {
        "feature": {"index": index, "sae_id": attached["sae_id"], "layer": attached["layer"]},
        "strengths": [proof["strength"]],
        "tokens": 4,
        "random_directions": 0,
    }
    kept = served.data("POST", "/api/effects?wait=true", asked)["job"]["result"]["id"]
    if kind == "profiles":
        document = served.data("POST", "/api/profiles/save-current", {"name": "calm sea"})
    else:
        file = demo.CLUSTER if kind == "clusters" else demo.CIRCUIT
        content = json.loads(renamed(file, "calm sea")["buffer"])
        served.data("POST", f"/api/{kind}/import", content)
        rows = served.data("GET", f"/api/{kind}")[kind]
        document = next(row for row in rows if row["name"] == "calm sea")
    visit = tab().open(f"/{kind}?id={document['id']}")
    expect(visit.page.get_by_text("No measurement is evidence for it")).to_be_visible()
    served.data("PUT", f"/api/effects/{kept}/evidence/{document['id']}")
    visit.page.reload()
    listed = visit.page.get_by_role("list", name="Measurements that are evidence")
    expect(listed.get_by_text(f"feature {attached['layer']}:{index}")).to_be_visible()
    visit.button(f"Open the measurement {kept}").click()
    expect(visit.page.get_by_role("img", name="KL to the plain model")).to_be_visible()
    assert not visit.violations()
    visit.page.set_viewport_size(NARROW)
    # the edges of a circuit are drawn anew
    wait_for(lambda: visit.overflow() <= 0)
    visit.button("Remove the evidence for calm sea").click()
    expect(visit.page.get_by_text("No measurement is evidence for it")).to_be_visible()


def test_a_file_that_is_refused_says_why_beside_its_name(tab: Tab) -> None:
    visit = tab().open("/clusters")
    visit.allow("status of 4")
    file = {"name": "broken.json", "mimeType": "application/json", "buffer": b'{"kind": "poem"}'}
    visit.page.get_by_label("Import a cluster or a bundle from files").set_input_files(files=[file])
    outcome = visit.page.get_by_role("list", name="Imported files").get_by_role("listitem")
    expect(outcome.get_by_text("broken.json", exact=True)).to_be_visible()
    expect(outcome.get_by_text(re.compile("refused", re.IGNORECASE)).first).to_be_visible()


def test_two_tabs_show_the_same_service(tab: Tab, served: Demo) -> None:
    one, other = tab().open("/clusters"), tab().open("/profiles")
    expect(other.strip.get_by_text("cluster sea words", exact=False)).to_be_hidden()
    one.button("Activate").click()
    expect(other.strip.get_by_text("cluster sea words λ 1.00")).to_be_visible()
    one.button("Deactivate").click()
    expect(other.strip.get_by_text("cluster sea words", exact=False)).to_be_hidden()


def test_a_firing_appears_while_the_page_of_sensing_is_open(tab: Tab, served: Demo) -> None:
    served.data("POST", f"/api/clusters/{demo.CLUSTER_ID}/activate")
    served.data("DELETE", "/api/sensing/events")
    visit = tab().open("/sensing?kind=cluster")
    page = visit.page
    expect(page.get_by_text("No event is recorded.", exact=False)).to_be_visible()
    served.write()
    listed = page.get_by_role("list", name="Events, newest first").get_by_role("listitem")
    total = served.data("GET", "/api/sensing/events")["total"]
    assert total > 0
    expect(listed).to_have_count(min(total, 100))
    newest = served.data("GET", "/api/sensing/events?limit=1")["events"][0]
    listed.first.get_by_role("button").click()
    marked = page.get_by_role("main").get_by_role("mark")
    detail = served.data("GET", f"/api/sensing/events/{newest['id']}")
    assert "".join(marked.last.all_inner_texts()) in json.dumps(detail, ensure_ascii=False)
