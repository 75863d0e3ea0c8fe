"""Run every measurement and keep the result: `python -m benchmarks.run [--only PART] [--out FILE]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import (
    engine,
    inference,
    machine,
    models,
    saes,
    sensing,
    service,
    steered_requests,
)
from steerserve import __version__

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="where to write; by default benchmarks/results/<time>.json"
    )
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    given = parser.parse_args()
    started = datetime.now(UTC)
    result: dict[str, Any] = {
        "version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "machine": machine.describe(),
    }
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        big = models.half_billion(scratch / "half-billion")
        for part in [given.only] if given.only else PARTS:
            result[part] = PARTS[part](scratch, big)
    target = given.out or RESULTS / f"{started:%Y-%m-%dT%H%M}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(line for part in PARTS if part in result for line in LINES[part](result[part])))
    print(f"\nwritten to {target}")


def _of_service(served: dict[str, Any]) -> list[str]:
    """The ratios that the aims speak of."""
    return [
        f"added per request: {served['added_seconds_per_request']['added_of_medians'] * 1e3:.2f} ms",
        f"added per streamed token: "
        f"{served['added_seconds_per_streamed_token']['added_of_medians'] * 1e3:.3f} ms",
        f"liveness while loading, p99: {served['liveness_seconds_while_loading']['p99'] * 1e3:.1f} ms",
    ]


def _of_engine(measured: dict[str, Any]) -> list[str]:
    decode = measured["decode_tokens_per_s"]
    return [
        f"decode, tokens/s: {decode['1']['median']:.1f} at 1 row, {decode['8']['median']:.1f} at 8, "
        f"{decode['32']['median']:.1f} at 32",
        f"32 rows over 1: {measured['rows_32_over_1']:.1f}",
        f"1 row over transformers generate: {measured['one_row_over_generate']:.2f}",
        f"1 row over the bandwidth limit: {measured['one_row_over_bandwidth_limit']:.2f}",
        f"prefill over a plain forward pass: {measured['prefill_over_plain_forward']['median']:.2f}",
        f"a steered step over a plain one: {measured['steering_step_ratio_8_rows']['median']:.4f}",
    ]


def _of_inference(asked: dict[str, Any]) -> list[str]:
    masked = asked["masked_step_ratio"]
    return [
        f"scoring throughput over the best plain batched passes: "
        f"{asked['scoring_over_best_plain_throughput']['median']:.2f}",
        "a constrained step over a plain one: "
        + ", ".join(f"{ratio['median']:.3f} at {n} rows" for n, ratio in masked.items()),
        f"first token of a second turn after {asked['history_tokens']} tokens: "
        f"{asked['second_turn_sooner']:.1f} x sooner with the kept prefix",
    ]


def _of_sensing(measured: dict[str, Any]) -> list[str]:
    return [
        f"a sensed step over a plain one, {name}: {ratio['median']:.4f}"
        for name, ratio in measured["step_ratio"].items()
    ]


def _of_saes(measured: dict[str, Any]) -> list[str]:
    steering, monitoring = measured["steering_step_ratio"], measured["monitoring_step_ratio"]
    return [
        f"attach {measured['sae']['d_sae']} features: {measured['attach_seconds']['median']:.2f} s, with the "
        f"self-check {measured['attach_with_check_seconds']['median']:.2f} s",
        *(f"a step steered, {name}: {ratio['median']:.4f}" for name, ratio in steering.items()),
        *(f"a step monitored, {name}: {ratio['median']:.3f}" for name, ratio in monitoring.items()),
    ]


def _of_requests(asked: dict[str, Any]) -> list[str]:
    return [
        f"{asked['requests']} requests with {asked['requests']} different steerings over unsteered ones, throughput: "
        f"{asked['throughput_ratio']['median']:.3f}"
    ]


PARTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "service": lambda scratch, big: asyncio.run(service.measure(scratch, big)),
    "engine": lambda _, big: engine.measure(big),
    "inference": lambda _, big: inference.measure(big),
    "saes": saes.measure,
    "requests": lambda scratch, big: asyncio.run(steered_requests.measure(scratch, big)),
    "sensing": lambda _, big: sensing.measure(big),
}
LINES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "service": _of_service,
    "engine": _of_engine,
    "inference": _of_inference,
    "saes": _of_saes,
    "requests": _of_requests,
    "sensing": _of_sensing,
}


if __name__ == "__main__":
    main()
