"""The dashboard is valid, and uses only series that the service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service import Running

FILE = Path(__file__).parent.parent / "docs" / "grafana" / "steerserve.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SERIES = re.compile(r"steerserve_\w+")
LABELS = re.compile(r"by \(([^)]*)\)|\{([^{}]*)\}")


def expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["query"]["query"]


@pytest.fixture(scope="module")
def exposed(shared: Running) -> dict[str, set[str]]:
    """The labels of every series, after a load, an answer and a refusal."""
    shared.complete("One day", max_tokens=2)
    shared.v1_error("/v1/completions", {"model": "nobody", "prompt": "a"})
    text = shared.http.get("/api/health/metrics/prometheus").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        found[f"{family.name}_total" if family.type == "counter" else family.name] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_series_and_label_it_asks_for_exists(exposed: dict[str, set[str]]) -> None:
    unmeasured = {"steerserve_card_memory_used_bytes", "steerserve_card_memory_total_bytes"}
    unmeasured |= {name for name in exposed if name.startswith("steerserve_replica")}
    for expression in expressions():
        (name,) = set(SERIES.findall(expression))
        assert name in exposed, expression
        asked = {
            word.strip().partition("=")[0]
            for grouping, selector in LABELS.findall(expression)
            for word in (grouping or selector).split(",")
        }
        asked -= {"job", "instance"}
        # a machine without cards has no sample of theirs, and one engine process has none of replicas
        assert asked <= exposed[name] or name in unmeasured, expression


def test_every_series_is_on_it(exposed: dict[str, set[str]]) -> None:
    shown = " ".join(expressions())
    for name in exposed:
        assert re.sub(r"_(bucket|count|sum)$", "", name) in shown, name


def test_it_asks_for_its_data_source_at_import_and_its_panels_do_not_overlap() -> None:
    (source,) = DASHBOARD["__inputs"]
    assert (source["name"], source["type"]) == ("DS_PROMETHEUS", "datasource")
    assert all(panel["datasource"]["uid"] == "${DS_PROMETHEUS}" for panel in PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
