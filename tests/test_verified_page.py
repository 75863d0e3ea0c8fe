"""The page of the verified models says what the kept figures say, and a row can be made anew."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
import torch
from tools.verified import __main__ as verified
from tools.verified import families, page


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels = Path(platformdirs.user_cache_dir("steerserve")) / "kernels"
    mine = tmp_path / "cache" / "steerserve" / "kernels"
    mine.mkdir(parents=True)
    for library in kernels.glob("*.so"):
        os.link(library, mine / library.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_page_is_what_the_figures_say() -> None:
    kept = json.loads(page.newest().read_text())
    assert page.PAGE.read_text(encoding="utf-8") == page.page(kept), (
        "run `python -m tools.verified`"
    )
    assert set(families.FAMILIES) <= set(kept["models"])
    assert set(families.EMBEDDERS) == set(kept["embedders"])


def test_a_row_can_be_made_anew(tmp_path: Path) -> None:
    row = verified.measure_family("Qwen3", tmp_path / "qwen3")
    assert row["read"]["ours"] <= 1.5 * row["read"]["library"]
    assert row["written"]["tokens"] == 24
    assert row["kept"]["reused"] > 256
    assert row["seeds"] is True
    assert row["compiled"]["refused"] == []
    assert len(row["sites"]) == 11
    for site in row["sites"].values():
        assert site["ours"] <= 2 * site["library"]
        assert site["effect"] > 2 * site["library"]
    assert row["identities"] < 1e-4


def test_what_does_not_agree_is_said_with_its_figures() -> None:
    near, far = {"ours": 0.01, "library": 0.01}, {"ours": 0.03, "library": 0.01}
    row = {
        "read": near,
        "written": far,
        "kept": near,
        "sites": {"resid_post": near, "hook_z": far},
        "seeds": False,
        "identities": 0.0,
        "compiled": {"refused": ["model.layers.1.mlp"]},
        "warnings": ["torch is wrong"],
    }
    kept = {"models": {"Llama": row}, "embedders": {"BERT": {"vectors": far}}}
    assert page.disagreements(kept) == [
        "Llama, written: 0.03 (0.01), 3.00 times as far",
        "Llama, site `hook_z`: 0.03 (0.01), 3.00 times as far",
        "Llama: a seeded request had other tokens beside others than alone",
        "Llama: model.layers.1.mlp keeps the library's code",
        "Llama: torch is wrong",
        "BERT, vectors: 0.03 (0.01)",
    ]
