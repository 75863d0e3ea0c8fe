"""The pages of the performance say what the kept results say, and their plots are drawn from them."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks import page, tables

MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "memory_gib": 8.0,
    "card": None,
    "torch": "2",
    "transformers": "5",
}


@pytest.mark.parametrize(
    ("file", "renew"), [(page.PAGE, page.renewed), (page.HISTORY, page.renewed_history)]
)
def test_a_page_is_what_the_results_say(
    file: Path, renew: Callable[[str, Mapping[str, page.Measured]], str]
) -> None:
    stored = file.read_text(encoding="utf-8")
    assert stored == renew(stored, page.measured()), "run `python -m benchmarks.page`"


def test_one_page_has_the_last_build_that_measured_real_models(tmp_path: Path) -> None:
    found = page.measured()
    real = f"real-{tables.REAL[0]}"
    shown = next(found[part].figures for part in (real, real + page.NARROW) if part in found)
    mixed = found["mixed"].figures
    for day, (version, parts) in enumerate(
        (
            ("0.1.0", {"mixed": mixed}),
            ("0.1.0+g0123abcd", {real: shown}),
            ("0.2.0", {"bandwidth": found["bandwidth"].figures}),
        ),
        1,
    ):
        facts = {"machine": MACHINE, "version": version, **parts}
        (tmp_path / f"2026-01-0{day}-a.json").write_text(json.dumps(facts))
    parts = page.measured(tmp_path)
    newest = page.renewed(page.PAGE.read_text(encoding="utf-8"), parts)
    assert "`0.1.0+g0123abcd`, which is the commit `0123abcd`." in newest
    assert set(re.findall(r"2026-01-0\d-a\.json", newest)) == {"2026-01-02-a.json"}
    history = page.renewed_history(page.HISTORY.read_text(encoding="utf-8"), parts)
    assert set(re.findall(r"2026-01-0\d-a\.json", history)) == {
        "2026-01-01-a.json",
        "2026-01-03-a.json",
    }


def test_the_plots_are_drawn_from_the_results() -> None:
    parts = page.measured()
    for part in page.DRAWN:
        assert part not in parts or page.is_fresh(part, parts[part]), (
            "run `python -m benchmarks.page`"
        )


def test_the_newest_whole_run_of_each_part_counts(tmp_path: Path) -> None:
    for name, facts in (
        ("2026-01-01-throughput", {"mixed": {"clients": 8}}),
        ("2026-01-02-throughput", {"mixed": {"clients": 32}, "steered": {"failed": "a failure"}}),
        ("2026-01-03-throughput", {"mixed": {"clients": 9}, "quick": True}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": MACHINE, **facts}))
    parts = page.measured(tmp_path)
    assert {name: one.file for name, one in parts.items()} == {
        "mixed": "2026-01-02-throughput.json"
    }


def test_a_processor_without_avx_512_has_sections_of_its_own(tmp_path: Path) -> None:
    part = {"bandwidth": page.measured()["bandwidth"].figures}
    for day, kind in enumerate(({}, {"instructions": "AVX2"}, {"instructions": "AVX512"}), 1):
        facts = {"machine": MACHINE | kind, **part}
        (tmp_path / f"2026-01-0{day}-throughput.json").write_text(json.dumps(facts))
    text = page.written(page.measured(tmp_path))
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    title = "The bandwidth of the memory"
    assert heads == [f"## {title}", f"## {title}, without AVX-512"]
    wide, narrow = text.split(heads[1])
    assert "2026-01-03" in wide
    assert "2026-01-02" in narrow


def spread(median: float) -> dict[str, float]:
    return {"median": median, "least": median, "greatest": median, "count": 1}


def test_the_page_opens_with_the_real_models(tmp_path: Path) -> None:
    def cell(rate: float, first: float) -> dict[str, Any]:
        times = {"p50": spread(first), "p95": first}
        whole = {"tokens_per_s": spread(rate), "first_token_s": times}
        return {"8": whole | {"answers": 16, "rounds_cut": 0}}

    facts = {"title": "A Model", "tokens": 96, "prompt_tokens": 40}
    beside = {
        "cells": {"steerserve": cell(120.0, 0.2), tables.LLAMA: cell(100.0, 0.1)},
        "ratios": {
            "bf16 over llama.cpp BF16": {
                "tokens_per_s": {"8": spread(1.2)},
                "first_token_s": {"8": spread(2.0)},
            }
        },
        "same_texts": {},
        "peers": {},
        "left_out": {"another": "not started"},
    }
    watched = {
        "cells": {"monitoring": cell(114.0, 0.2)},
        "ratios": {"monitoring": {"8": spread(0.96)}},
        **{"sae": "of random weights", "layer": 3, "d_sae": 64, "edits": 8, "members": 20},
        "top_k": 10,
    }
    parts = {
        f"real-{tables.REAL[0]}{end}": facts | of
        for end, of in (("", beside), ("-steered", watched))
    }
    whole = {"machine": MACHINE, "version": "0.1.0+g0123abcd.dirty", **parts}
    (tmp_path / "2026-01-01-real.json").write_text(json.dumps(whole))
    renewed = page.renewed(page.PAGE.read_text(encoding="utf-8"), page.measured(tmp_path))
    first, rest = renewed.split(page.OPENING_END)
    for line in (
        "commit `0123abcd`, with changes that were in no commit.",
        "2026-01-01-real.json",
        "| A Model, bf16 | 120 / 100 (1.20) |",
        "| A Model, with monitoring of the top 10 features | 0.96 |",
    ):
        assert line in " ".join(first.split())
    for line in (
        "| A Model, bf16 over llama.cpp BF16, 8 at once, tokens/s | 1.20 | at least 1.5 | missed by 20% |",
        "| A Model, bf16 over llama.cpp BF16, 8 at once, first token | 2.00 | at most 1 | missed by 100% |",
        "| A Model, 8 at once, with monitoring of the top 10 features, over plain, tokens/s | 0.96 | at least 0.95 | met |",
        "- another was left out: not started",
    ):
        assert line in rest


def test_a_peer_that_collapses_counts_at_its_best() -> None:
    def cells(rates: dict[str, float]) -> dict[str, Any]:
        first = {"p50": {"median": 1.0}}
        return {
            at: {"tokens_per_s": {"median": rate}, "first_token_s": first}
            for at, rate in rates.items()
        }

    spread = {"median": 50.0, "least": 49.0, "greatest": 51.0, "count": 3}
    ours, peer = cells({"1": 20.0, "32": 100.0}), cells({"1": 10.0, "8": 12.5, "32": 2.0})
    part = {
        "ratios": {"32 over transformers": spread},
        "cells": {"steerserve": ours, tables.BATCHED: peer},
    }
    collapsed, *_ = tables.rows("concurrency-91m", part)
    assert (collapsed.figure, collapsed.outcome) == ("8.00", "met")
    assert "2.0 tokens/s" in collapsed.name
    assert "12.5 of 8 at once" in collapsed.name
    part["cells"][tables.BATCHED] = cells({"1": 10.0, "8": 12.5, "32": 7.0})
    counted, *_ = tables.rows("concurrency-91m", part)
    assert counted.figure.startswith("50.00")


def test_no_cell_of_a_table_is_a_crash() -> None:
    texts = page.PAGE.read_text() + page.HISTORY.read_text()
    cells = [line for line in texts.splitlines() if line.startswith("|")]
    assert not [
        line for line in cells if re.search(r"\w(Error|Exception)\b|ASSERT|Traceback", line)
    ]


def test_every_part_of_a_run_has_rows_and_a_section() -> None:
    assert set(page.SECTIONS) == set(tables.ROWS)


BENCHMARKS = [file.stem for file in Path(page.__file__).parent.glob("*.py")]


@pytest.mark.parametrize(
    "name", sorted({*BENCHMARKS} - {"__init__", "plots", "lm_eval_peer"})
)  # plots and the harness need extras
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
