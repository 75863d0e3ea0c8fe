"""The page of the performance says what the kept results say, and its plots are drawn from them."""

from __future__ import annotations

import importlib
import json
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


def spread(median: float) -> dict[str, float]:
    return {"median": median, "least": median / 2, "greatest": median * 2, "count": 3}


def cell(speed: float) -> dict[str, Any]:
    quantiles = {"p50": spread(0.01), "p99": spread(0.05)}
    return {
        "tokens_per_s": spread(speed),
        "first_token_s": quantiles,
        "gap_s": quantiles,
        "rounds_cut": 0,
    }


def of_long_prompts() -> dict[str, Any]:
    phases = ("alone", "beside 1, prefill", "beside 1, decode", "beside 4, prefill")
    return {
        "short": 16,
        "long_tokens": 4000,
        "phases": {name: cell(200) for name in phases},
        "over_alone": {phases[1]: {"p50": spread(1.2), "p99": spread(5.0)}},
        "first_token_of_the_last_long_s": {"beside 1": spread(4.0)},
    }


def of_concurrency() -> dict[str, Any]:
    return {
        "tokens": 96,
        "cut_seconds": 15.0,
        "cells": {"steerserve": {"1": cell(30), "32": cell(480)}, "other": {"1": cell(20)}},
        "ratios": {"32 seeded": spread(0.4), "32 over 1": spread(16)},
        "peers": {"other": dict.fromkeys(("library", "options", "sampling", "environment"), "x")},
        "left_out": {"another": "not installed"},
    }


def of_steered() -> dict[str, Any]:
    return {
        "requests": 32,
        "tokens": 48,
        "d_sae": 16384,
        "firings_of_the_cluster": 7,
        "cells": {"plain": cell(400), "monitoring": cell(380)},
        "ratios": {"monitoring": spread(0.95)},
    }


def of_neighbours() -> dict[str, Any]:
    kinds = {"demo, 1 at once": cell(200)}
    return {"alone": kinds, "beside": kinds, "ratios": {"demo, 1 at once": spread(0.9)}}


def of_a_batch() -> dict[str, Any]:
    return {
        "answer_tokens": 96,
        "slots": 64,
        "batch_alone_tokens_per_s": spread(900),
        "batch_beside_tokens_per_s": {"4 live": spread(30)},
        "alone": {"4 live": cell(200)},
        "beside": {"4 live": cell(190)},
        "ratios": {"4 live": {"gap, p50": spread(1.1), "first token, p99": spread(1.4)}},
    }


def of_few_shot() -> dict[str, Any]:
    return {
        "examples": 1000,
        "questions": 12,
        "question_tokens": 32,
        "continuations": 4,
        "continuation_tokens": 4,
        "connections": 8,
        "aimed_at": "kept",
        "per_s": {"ours": spread(30), "kept": spread(20)},
        "ratios": {"kept": spread(1.5)},
    }


def of_lm_eval() -> dict[str, Any]:
    task = {
        "about": "4 choices",
        "requests": 48,
        "prompt_tokens": 660,
        "per_s": {"ours": spread(10), "transformers": spread(2)},
        "ratios": {"ours": spread(5.0)},
    }
    return {
        "harness": "lm-eval",
        "questions": 12,
        "shots": 5,
        "slots": 64,
        "aimed_at": "ours",
        "tasks": {"choices": task},
    }


def of_a_step() -> dict[str, Any]:
    milliseconds = {"linear layers": 9.0, "attention": 2.0}
    return {"step_ms": spread(12.5), "tokens_per_s": 80.0, "milliseconds": milliseconds}


THROUGHPUT = {
    "bandwidth": {
        "read_bytes_per_s": spread(2e10),
        "limit_tokens_per_s": {"91m": 100.0},
    },
    "concurrency-91m": of_concurrency(),
    "concurrency-0.5b": {"failed": "a failure"},
    "long-prompts": of_long_prompts(),
    "steered": of_steered(),
    "few-shot": of_few_shot(),
    "lm-eval": of_lm_eval(),
    "neighbours": of_neighbours(),
    "beside-batch": of_a_batch(),
    "beside-jobs": {
        "answer_tokens": 96,
        "slots": 32,
        "seconds": 12.0,
        "corpus_tokens": 1000000,
        "texts": {"a contrast": 2000, "a training": 500},
        "streams": {"a corpus": 8},
        "share_of_the_job": {"a corpus": spread(0.02)},
        "alone": {"a corpus": cell(100)},
        "beside": {"a corpus": cell(95)},
        "ratios": {"a corpus": {"p50": spread(1.05), "p99": spread(2.0)}},
    },
    "mixed": {"clients": 32, "cell": cell(150)},
    "step-times": {
        "size": "91m",
        "steps": 30,
        "cases": {"1 row": of_a_step(), "8 rows": of_a_step()},
    },
    "step-watched": {
        "rows": 32,
        "d_sae": 16384,
        "encoding_ms": spread(2.0),
        "kinds": {"monitored": {"pass_ms": spread(30.0), "observers_ms": spread(3.0)}},
    },
    "step-reading": {
        "rows": 16,
        "prompts": 3,
        "prompt_tokens": 4000,
        "share_with_a_part": 0.34,
        "p50_over_alone": 1.2,
        "step_ms": {"reads a part": spread(60.0)},
    },
    "step-edits": {
        "rows": 32,
        "d_sae": 16384,
        "kinds": {
            "one clamp each": {
                "step_ms": spread(31.0),
                "plain_ms": spread(30.0),
                "rate_over_plain": spread(0.96),
            }
        },
    },
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run, an older one, and a quick one that is newer."""
    for name, facts in (
        ("2026-01-02-throughput", THROUGHPUT),
        ("2026-01-01-throughput", {"mixed": {"clients": 8, "cell": cell(1)}}),
        ("2026-01-03-throughput", {"mixed": {"clients": 9, "cell": cell(2)}, "quick": True}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": MACHINE, **facts}))
    return tmp_path


def test_the_page_is_what_the_results_say() -> None:
    stored = page.PAGE.read_text(encoding="utf-8")
    parts = page.measured()
    assert stored == page.replaced(stored, page.written(parts)), "run `python -m benchmarks.page`"


def test_the_plots_are_drawn_from_the_results() -> None:
    parts = page.measured()
    for part in page.DRAWN:
        assert part not in parts or page.is_fresh(part, parts[part]), (
            "run `python -m benchmarks.page`"
        )


def test_the_newest_whole_run_of_each_part_counts(results: Path) -> None:
    parts = page.measured(results)
    assert "concurrency-0.5b" not in parts
    assert {one.file for one in parts.values()} == {"2026-01-02-throughput.json"}


def test_every_part_has_a_section_and_each_aim_its_outcome(results: Path) -> None:
    text = page.written(page.measured(results))
    for part, (title, _) in page.SECTIONS.items():
        is_there = part in THROUGHPUT and part != "concurrency-0.5b"
        assert (f"\n## {title}\n" in text) == is_there
    assert "| 0.40 (0.20 to 0.80) | at least 0.8 | missed by 50% |" in text
    assert "| 5.00 (2.50 to 10.00) | at most 2.5 | missed by 100% |" in text
    assert "| 0.95 (0.47 to 1.90) | at least 0.93 | met |" in text
    assert "| 5.00 (2.50 to 10.00) | at least 2 | met |" in text
    assert "| 8 rows | 12.5 (6.2 to 25.0) | 80 | 9.0 | 2.0 |" in text
    assert "| monitored | 30.0 (15.0 to 60.0) | 3.0 (1.5 to 6.0) |" in text
    assert "| reads a part | 60.0 (30.0 to 120.0) | 3 |" in text
    assert "- another was left out: not installed" in text
    assert "](performance/concurrency-91m.png)" in text


def test_every_part_of_a_run_has_rows_and_a_section() -> None:
    assert set(page.SECTIONS) == set(tables.ROWS)


def test_a_plot_names_the_figures_that_it_is_drawn_from(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` draws plots")
    parts = page.measured(results)
    folder = tmp_path / "plots"
    assert not page.is_fresh("long-prompts", parts["long-prompts"], folder)
    page.drawn(parts, folder)
    for part in page.DRAWN:
        assert part not in parts or page.is_fresh(part, parts[part], folder)
    assert len(list(folder.iterdir())) == 2


BENCHMARKS = [file.stem for file in Path(page.__file__).parent.glob("*.py")]


@pytest.mark.parametrize(
    "name", sorted({*BENCHMARKS} - {"__init__", "plots", "lm_eval_peer"})
)  # plots and the harness need extras
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
