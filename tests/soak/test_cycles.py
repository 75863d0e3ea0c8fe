"""Loading and unloading again and again: the control plane stays as small as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.soak import watching
from tests.soak.watching import Process, Usage, sizes, slope, stressed, usage

WARMING = 2
"""Cycles before anything is measured: pools fill, and modules are imported."""

STEADY = 0.1
"""Files or threads per cycle; one that stayed behind in each would be 1."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """How many, and the growth in MiB per cycle that is too much; a few cycles tell less."""

    count: int
    growth_mb: float


def cycle(served: Process, model_id: int, name: str) -> Usage:
    watching.load(served.http, model_id)
    asked = {"model": name, "prompt": "the boats", "max_tokens": 4}
    answer = served.http.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    answer = served.http.post(f"/api/models/{model_id}/unload")
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"]["status"] == "ready"
    return usage(served)


@sizes(Cycles(6, 2.0), Cycles(50, 0.5), seconds=300)
@pytest.mark.soak
def test_loads_and_unloads_leave_nothing_behind(
    tmp_path: Path, folders: dict[str, Path], size: Cycles
) -> None:
    with stressed(tmp_path) as served:
        ids = {
            name: watching.register(served.http, folder, name) for name, folder in folders.items()
        }
        names = [("red", "blue")[number % 2] for number in range(WARMING + size.count)]
        measured = [cycle(served, ids[name], name) for name in names][WARMING:]
        first, last = measured[0], measured[-1]
        growth = slope([one.rss_mb for one in measured])
        print(f"{size.count} loads and unloads: {growth:.3f} MiB per cycle; {first} -> {last}")
        assert watching.engines(served) == []
        assert watching.zombies(served) == []
        assert watching.complaints(served) == []
        assert growth < size.growth_mb
        assert abs(slope([one.files_of_all for one in measured])) < STEADY
        assert abs(slope([one.threads for one in measured])) < STEADY
        assert {one.processes for one in measured} == {first.processes}
        watching.stop(served)
