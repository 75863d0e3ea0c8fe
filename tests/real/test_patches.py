"""The recipe of docs/activations.md, run as it is written: where a real model keeps the name of an indirect object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.real.models import SMOLLM2

from tests.contract.clients import pages
from tests.service import add_model, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_the_name_moves_to_the_last_position(tmp_path: Path) -> None:
    (*_, recipe) = [text for _, text in pages.blocks("../activations.md", "python")]
    (*_, printed) = [text for _, text in pages.blocks("../activations.md", "text")]
    names: dict[str, object] = {}
    with running(tmp_path / "home") as live:
        model = add_model(live, SMOLLM2.checkpoint)
        live.data("POST", f"/api/models/{model}/load?wait=true")
        exec(recipe.replace("Client()", f"Client({live.url!r})"), names)
        names["client"].close()  # type: ignore[attr-defined]
    found, sweep = names["found"], names["sweep"]
    assert isinstance(found, np.ndarray)
    assert sweep.clean > 5  # type: ignore[attr-defined]
    assert sweep.corrupt < -5  # type: ignore[attr-defined]
    assert sweep.noise_floor < 1e-4  # type: ignore[attr-defined]
    columns = [names["second"], names["last"]]
    shown = np.array(
        [[float(one) for one in row.strip(" []").split()] for row in printed.strip().split("\n")]
    )
    assert found[[0, 18, 20, 23, 29]][:, columns] == pytest.approx(shown, abs=0.06)
