"""/api/patches against a running service, and the same figures by the library's model with hooks of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.nouns.small import LAYERS, SmallModel
from tests.service import Running, running

PATH = "/api/patches"
CLEAN, CORRUPT = "the boats were coming home", "the other were coming home"
TARGET, AGAINST = 7, 9
DIFFERENCE = {"kind": "logit_difference", "target_token": TARGET, "against_token": AGAINST}
HEADS = 4


class Swept(SmallModel):
    """A small model, and two texts that are patched into each other."""

    def __init__(self, live: Running, folder: Path) -> None:
        super().__init__(live, folder)
        self.clean, self.corrupt = self._alike()

    def _alike(self) -> tuple[str, str]:
        """Two texts of equally many tokens."""
        clean = self.ids(text=CLEAN)
        corrupt = [*clean[:2], clean[4], clean[5], *clean[4:]]
        text = self.live.data("POST", "/api/detokenize", {"ids": corrupt[1:]})["text"]
        assert len(self.ids(text=text)) == len(clean)
        return CLEAN, text

    def sweep(self, **body: Any) -> dict[str, Any]:
        asked = {"clean": self.clean, "corrupt": self.corrupt, "sites": ["resid_post"]}
        sent = {**asked, "metric": DIFFERENCE, **body}
        job = self.live.data("POST", f"{PATH}?wait=true", sent)["job"]
        assert (job["kind"], job["state"], job["error"]) == ("patches", "done", None)
        return dict(job["result"])

    def logits(
        self, ids: list[int], layer: int = -1, position: int = 0, value: Any = None
    ) -> Tensor:
        """The logits after a text, with a value in the place of its own behind a layer; and these values."""

        def edit(_: Any, __: Any, output: Any) -> Any:
            stream = output[0] if isinstance(output, tuple) else output
            self.stream = stream[0].clone()
            if value is not None:
                stream = stream.clone()
                stream[0, position] = value
            return (stream, *output[1:]) if isinstance(output, tuple) else stream

        handle = self.reference.layers[layer].register_forward_hook(edit)
        try:
            with torch.no_grad():
                return self.reference.model(input_ids=torch.tensor([ids])).logits[0, -1]
        finally:
            handle.remove()

    def refused(self, **body: Any) -> tuple[str, dict[str, Any]]:
        asked = {"clean": self.clean, "corrupt": self.corrupt, "sites": ["resid_post"]}
        _, code, details = self.live.error("POST", PATH, {**asked, "metric": DIFFERENCE, **body})
        return code, details


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    folder = tmp_path_factory.mktemp("patches")
    with running(folder / "home") as live:
        yield Swept(live, folder)


def difference(logits: Tensor) -> float:
    return float(logits[TARGET] - logits[AGAINST])


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_a_sweep_equals_a_loop_of_hooks(swept: Swept, direction: str) -> None:
    found = swept.sweep(direction=direction)
    clean, corrupt = swept.ids(text=swept.clean), swept.ids(text=swept.corrupt)
    ends = [difference(swept.logits(ids)) for ids in (clean, corrupt)]
    assert [found["clean"], found["corrupt"]] == near(ends)
    base, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    places = [(layer, at) for layer in range(LAYERS) for at in range(len(base))]
    assert [(one["layer"], *one["positions"]) for one in found["cells"]] == places
    for (layer, at), cell in zip(places, found["cells"], strict=True):
        swept.logits(source, layer)
        value = difference(swept.logits(base, layer, at, swept.stream[at]))
        assert cell["value"] == near(value)
        assert cell["normalised"] == near((value - ends[1]) / (ends[0] - ends[1]))
    assert found["noise_floor"] < 1e-4
    assert len(found["tokens"]) == len(base)
    # the last position of the last layer decides the next token
    assert found["cells"][-1]["value"] == near(ends[0] if direction == "denoise" else ends[1])


def test_equal_texts_give_exactly_0(swept: Swept) -> None:
    found = swept.sweep(corrupt=swept.clean, sites=["resid_pre", "hook_z", "mlp_out"])
    assert {one["value"] - found["corrupt"] for one in found["cells"]} == {0.0}
    assert {one["normalised"] for one in found["cells"]} == {None}
    divergence = swept.sweep(corrupt=swept.clean, metric={"kind": "kl"})
    assert {one["value"] for one in divergence["cells"]} == {0.0}


def test_metrics_are_those_of_the_next_token(swept: Swept) -> None:
    clean, corrupt = (
        swept.logits(swept.ids(text=text)).log_softmax(-1) for text in (swept.clean, swept.corrupt)
    )
    found = swept.sweep(metric={"kind": "logprob", "target_token": TARGET}, positions=[-1])
    assert [found["clean"], found["corrupt"]] == near(
        [float(clean[TARGET]), float(corrupt[TARGET])]
    )
    found = swept.sweep(metric={"kind": "kl"}, positions="all")
    distance = float((clean.exp() * (clean - corrupt)).sum())
    assert [found["clean"], found["corrupt"]] == near([0.0, distance])
    # all positions behind a layer are the clean text
    assert [one["value"] for one in found["cells"]] == near([0.0] * LAYERS)
    assert [one["normalised"] for one in found["cells"]] == near([1.0] * LAYERS)


def test_cells_are_places_times_groups(swept: Swept) -> None:
    count = len(swept.ids(text=swept.clean))
    found = swept.sweep(sites=["hook_z"], layers=[1], positions=[[1, 2], [-1]], heads="each")
    places = [(one["layer"], one["head"], one["positions"]) for one in found["cells"]]
    assert places == [(1, head, at) for head in range(HEADS) for at in ([1, 2], [count - 1])]
    found = swept.sweep(sites=["embed", "attn_out"], layers=[0], positions=[2])
    assert [one["site"] for one in found["cells"]] == ["embed", "attn_out"]
    assert "head" not in found["cells"][0]


def test_texts_of_different_lengths_are_aligned(swept: Swept) -> None:
    longer = f"{swept.clean} again"
    size = len(swept.ids(text=longer))
    count = len(swept.ids(text=swept.corrupt))
    code, details = swept.refused(clean=longer)
    assert (code, details["param"]) == ("INVALID_PARAMETER", "corrupt")
    assert (details["clean_tokens"], details["corrupt_tokens"]) == (size, count)
    found = swept.sweep(clean=longer, align=[[-1, -1], [0, 0]])
    assert [one["positions"] for one in found["cells"]] == [[0], [count - 1]] * LAYERS
    assert found["cells"][-1]["value"] == near(found["clean"])


def test_conversations_are_rendered(swept: Swept) -> None:
    clean = {"messages": [{"role": "user", "content": swept.clean}]}
    corrupt = {"messages": [{"role": "user", "content": swept.corrupt}]}
    found = swept.sweep(clean=clean, corrupt=corrupt, positions=[-1], layers=[1])
    assert found["cells"][0]["value"] == near(found["clean"])
    assert "".join(found["tokens"]).count("user") == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"sites": ["resid_post", "nowhere"]}, "sites[1]"),
        ({"sites": ["resid_post", "resid_post"]}, "sites[1]"),
        ({"layers": [0, LAYERS]}, "layers[1]"),
        ({"layers": [1, 1]}, "layers[1]"),
        ({"heads": "each"}, "heads"),
        ({"positions": [0, 400]}, "positions[1]"),
        ({"positions": [[0], [1, 400]]}, "positions[1][1]"),
        ({"positions": [[1, 1]]}, "positions[0]"),
        ({"align": [[0, 0], [0, 400]]}, "align[1][1]"),
        ({"align": [[0, 0], [1, 0]]}, "align[1]"),
        ({"align": [[0, 0]], "positions": [1]}, "positions[0]"),
        ({"metric": {**DIFFERENCE, "against_token": TARGET}}, "metric.against_token"),
        ({"metric": {**DIFFERENCE, "target_token": 100_000}}, "metric.target_token"),
        ({"metric": {**DIFFERENCE, "target_token": "two words"}}, "metric.target_token"),
        ({"clean": "a" * 190_000}, "clean"),
    ],
)
def test_refusals_name_the_place(swept: Swept, body: dict[str, Any], param: str) -> None:
    assert swept.refused(**body)[1]["param"] == param


def test_a_sweep_that_is_too_large_is_refused_with_its_arithmetic(tmp_path: Path) -> None:
    with running(tmp_path / "home", patches_max_tokens=200) as live:
        small = Swept(live, tmp_path)
        code, details = small.refused(sites=["resid_pre", "resid_post"])
        tokens = len(small.ids(text=small.clean))
        assert code == "INVALID_PARAMETER"
        assert details == {
            "param": "positions",
            "cells": 2 * LAYERS * tokens,
            "tokens": tokens,
            "total": 2 * LAYERS * tokens * tokens,
            "maximum": 200,
        }
        assert small.sweep(positions=[0], layers=[0])["cells"]
