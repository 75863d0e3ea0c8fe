"""The figures of each part of a run as rows of text: printed at its end, and written to a page.

Parts are plain JSON here, so that the page is made without PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound of a figure."""

    bound: float
    is_least: bool = True

    def __str__(self) -> str:
        return f"{'at least' if self.is_least else 'at most'} {self.bound:g}"

    def outcome(self, figure: float) -> str:
        """Whether the figure is within the bound, or the part of the bound by which it is missed."""
        is_met = figure >= self.bound if self.is_least else figure <= self.bound
        part = abs(figure / self.bound - 1)
        missed = f"missed by {part:.0%}" if part >= 0.005 else "missed by less than 1%"
        return "met" if is_met else missed


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its name; `aim` and `outcome` are empty where nothing is aimed at."""

    name: str
    figure: str
    aim: str = ""
    outcome: str = ""

    @property
    def remark(self) -> str:
        return f" ({self.aim}: {self.outcome})" if self.aim else ""


def spread(values: Mapping[str, float], digits: int = 2, factor: float = 1.0) -> str:
    """The median, with the least and the greatest value where there are several."""
    median, least, greatest = (
        f"{values[name] * factor:,.{digits}f}" for name in ("median", "least", "greatest")
    )
    return f"{median} ({least} to {greatest})" if values["count"] > 1 else median


def ms(values: Mapping[str, float], digits: int = 0) -> str:
    return spread(values, digits, 1e3)


def aimed(name: str, values: Mapping[str, float], aim: Aim | None) -> Row:
    """The row of a ratio."""
    shown = spread(values)
    return Row(name, shown, str(aim), aim.outcome(values["median"])) if aim else Row(name, shown)


def rows(part: str, figures: Part) -> list[Row]:
    """The rows of a part, or the reason why the part has none."""
    if "failed" in figures:
        return [Row("failed", figures["failed"])]
    return list(ROWS[part](figures))


# ---------------------------------------------------------------- throughput

AIMS = {
    "8 seeded": ("8 requests with seeds over 8 without, tokens/s", Aim(0.8)),
    "32 seeded": ("32 requests with seeds over 32 without, tokens/s", Aim(0.8)),
    "32 over 1": ("32 at once over 1, tokens/s", None),
    "64 over 32": ("64 at once over 32, tokens/s", Aim(1.0)),
    "32 over transformers": (
        "32 at once, sampled, over greedy `transformers serve` with continuous batching",
        Aim(2.0),
    ),
    "32 greedy over transformers": ("the same, both greedy", Aim(2.0)),
    "1 over llama.cpp": ("1 at a time, sampled, over greedy llama.cpp in BF16", Aim(0.9)),
    "1 greedy over llama.cpp": ("the same, both greedy", Aim(0.9)),
    "1 Q8 over llama.cpp": ("1 at a time in Q8, sampled, over greedy llama.cpp in Q8_0", Aim(0.8)),
    "1 Q4 over Q8": ("1 at a time in Q4 over Q8", Aim(1.0)),
    "1 Q8 over bfloat16": ("1 at a time in Q8 over bfloat16", Aim(1.0)),
}
LONG_AIMS = {"p50": Aim(1.25, is_least=False), "p99": Aim(2.5, is_least=False)}
STEERED_AIMS = {
    "32 profiles": ("32 requests with 32 profiles", Aim(0.97)),
    "32 sae_steering": ("32 requests, each with its own `sae_steering`", Aim(0.97)),
    "32 clamps": ("32 requests, each sets a feature of its own", Aim(0.93)),
    "32 ablations": ("32 requests, each ablates a direction of its own", Aim(0.93)),
    "32 gated clamps": ("32 requests, each sets a feature while another is on", Aim(0.93)),
    "8 edits each": ("32 requests, each with 8 edits of its own", Aim(0.8)),
    "a sensed cluster": ("a sensed cluster of 20 members", Aim(0.97)),
    "monitoring": ("monitoring of the top 10 of 16,384 features", Aim(0.93)),
}
BESIDE = Aim(0.8)
SEEDED = Aim(0.8)
SMALLER = Aim(1.0)
WIDE = Aim(0.93)
"""Ratios on cards, as on processors: with seeds, in fewer bits, with a wide SAE."""
LINEAR = Aim(0.9)
ADDED_FIRST_MS = Aim(5.0, is_least=False)
ADDED_TOKEN_MS = Aim(0.3, is_least=False)


def _of_bandwidth(part: Part) -> Iterator[Row]:
    read = spread(part["read_bytes_per_s"], 1, 1e-9)
    yield Row("read by a product of a matrix and a vector, GB/s", read)
    for size, limit in part["limit_tokens_per_s"].items():
        yield Row(f"one row that reads as fast, {size.upper()}, tokens/s", f"{limit:.1f}")


BATCHED, LLAMA = "transformers serve, continuous batching", "llama.cpp BF16"
COMPARED = {
    "32 over transformers": ("steerserve", BATCHED, "32"),
    "32 greedy over transformers": ("steerserve, greedy", BATCHED, "32"),
}
"""Ratios over a peer that serves several requests at once: our cell, the peer, and the requests at once."""
FIRST_TOKEN = Aim(1.0, is_least=False)


def _of_concurrency(part: Part) -> Iterator[Row]:
    cells = part["cells"]
    for key, values in part["ratios"].items():
        name, aim = AIMS[key]
        ours, peer, count = COMPARED.get(key, ("", "", ""))
        if peer and has_collapsed(cells[peer], count):
            yield _over_best(name, cells[ours][count], cells[peer], count, aim)
        else:
            yield aimed(name, values, aim)
    for count, cell in cells["steerserve"].items():
        yield from _first_token(count, cell, cells)


def has_collapsed(cells: Part, count: str) -> bool:
    """Whether a server writes less than half of the tokens that it writes with fewer requests at once. What it is
    compared with then says nothing."""
    rates = {int(at): cell["tokens_per_s"]["median"] for at, cell in cells.items()}
    fewer = [rate for at, rate in rates.items() if at < int(count)]
    return bool(fewer) and rates[int(count)] < max(fewer) / 2


def _over_best(name: str, ours: Part, peer: Part, count: str, aim: Aim | None) -> Row:
    """The row of a ratio whose peer collapsed: the peer counts with the requests at once with which it is fastest."""
    best = max(peer, key=lambda at: peer[at]["tokens_per_s"]["median"])
    most, here = (peer[at]["tokens_per_s"]["median"] for at in (best, count))
    ratio = ours["tokens_per_s"]["median"] / most
    shown = f"{name}, which collapses to {here:.1f} tokens/s and counts with its {most:.1f} of {best} at once"
    outcome = aim.outcome(ratio) if aim else ""
    return Row(shown, f"{ratio:.2f}", str(aim or ""), outcome)


def _first_token(count: str, cell: Part, cells: Part) -> Iterator[Row]:
    """The time to the first token over that of the quickest peer in 16 bits with as many requests at once."""
    peers = {
        name: cells[name][count]["first_token_s"]["p50"]["median"]
        for name in (BATCHED, LLAMA)
        if count in cells.get(name, ()) and not has_collapsed(cells[name], count)
    }
    if peers:
        quickest = min(peers, key=lambda name: peers[name])
        ratio = cell["first_token_s"]["p50"]["median"] / peers[quickest]
        name = (
            f"first token of {count} at once, p50, over the quickest peer in 16 bits ({quickest})"
        )
        yield Row(name, f"{ratio:.2f}", str(FIRST_TOKEN), FIRST_TOKEN.outcome(ratio))


def _of_long_prompts(part: Part) -> Iterator[Row]:
    for phase, ratios in part["over_alone"].items():
        for share, values in ratios.items():
            name = f"gap between tokens of {part['short']} short requests, {share}, {phase}, over alone"
            yield aimed(name, values, LONG_AIMS[share])


def _of_steered(part: Part) -> Iterator[Row]:
    for key, values in part["ratios"].items():
        name, aim = STEERED_AIMS[key]
        yield aimed(f"{name}, over 32 plain requests, tokens/s", values, aim)


def _of_kept_beginnings(figures: Part) -> Iterator[Row]:
    for name, values in figures["ratios"].items():
        yield aimed(f"first token after a plain request, {name}, over reading anew", values, None)


FEW_SHOT = Aim(1.0)


def _of_few_shot(part: Part) -> Iterator[Row]:
    what = f"{part['connections']} connections, {part['questions']} questions of {part['continuations']} continuations"
    for name, values in part["ratios"].items():
        aim = FEW_SHOT if name == part["aimed_at"] else None
        yield aimed(f"an evaluation after the same examples, {what}, over {name}", values, aim)


LM_EVAL = Aim(2.0)


def _of_lm_eval(part: Part) -> Iterator[Row]:
    for task in part["tasks"].values():
        for name, values in task["ratios"].items():
            what = f"lm-eval, {task['about']}, {name}, over transformers in process, requests/s"
            yield aimed(what, values, LM_EVAL if name == part["aimed_at"] else None)


def _of_neighbours(part: Part) -> Iterator[Row]:
    for key, values in part["ratios"].items():
        yield aimed(f"beside a busy process over alone, tokens/s, {key}", values, BESIDE)


BESIDE_BATCH = {"p50": Aim(1.15, is_least=False), "p99": Aim(1.5, is_least=False)}


def _of_beside_batch(part: Part) -> Iterator[Row]:
    for live, ratios in part["ratios"].items():
        for key, values in ratios.items():
            what, share = key.split(", ")
            name = f"{what} of {live} beside a running batch over alone, {share}"
            yield aimed(name, values, BESIDE_BATCH[share])
    rate = spread(part["batch_alone_tokens_per_s"], 0)
    yield Row("a batch without live requests, tokens/s", rate)


BESIDE_JOBS = Aim(1.1, is_least=False)


def _of_beside_jobs(part: Part) -> Iterator[Row]:
    for job, ratios in part["ratios"].items():
        for share, values in ratios.items():
            name = f"gap of {part['streams'][job]} live streams beside {job} over alone, {share}"
            yield aimed(name, values, BESIDE_JOBS if share == "p50" else None)


WHOLE_CORPUS = Aim(20.0, is_least=False)


def _of_beside_corpus(part: Part) -> Iterator[Row]:
    tokens = f"{part['tokens']:,} tokens"
    what = f"a corpus of {tokens} read beside {part['streams']} live streams, minutes"
    is_whole = part["tokens"] >= 1_000_000
    yield aimed(what, part["minutes"], WHOLE_CORPUS if is_whole else None)
    for share, values in part["ratios"].items():
        name = f"gap of {part['streams']} live streams beside the whole corpus over alone, {share}"
        yield aimed(name, values, BESIDE_JOBS if share == "p50" else None)
    yield Row("tokens of the corpus that are read again after kill -9", str(part["lost_by_kill"]))


def _of_mixed(part: Part) -> Iterator[Row]:
    yield Row(
        f"{part['clients']} requests with prompts of 20 to 2,000 and answers of 16 to 256 tokens, tokens/s",
        spread(part["cell"]["tokens_per_s"], 0),
    )
    for key, name in (
        ("first_token_s", "their first token"),
        ("gap_s", "gap between their tokens"),
    ):
        for share, values in part["cell"][key].items():
            yield Row(f"{name}, {share}, ms", ms(values))


def _of_step_times(part: Part) -> Iterator[Row]:
    for name, case in part["cases"].items():
        yield Row(f"a step of the batch alone, {name}, ms", spread(case["step_ms"], 1))


def _of_token_costs(part: Part) -> Iterator[Row]:
    aim, together = Aim(1.0, is_least=False), part["together_s"] * 1e3
    name = (
        f"a token of one streamed request outside the model, {part['size']}, ms of processor time"
    )
    yield Row(name, f"{together:.2f}", str(aim), aim.outcome(together))
    yield Row("of it the control plane", ms(part["control_plane_s"], 2))
    for name, seconds in part["engine_s"].items():
        yield Row(f"the main thread of the engine, {name}", ms(seconds, 2))


def _of_step_watched(part: Part) -> Iterator[Row]:
    for name, one in part["kinds"].items():
        yield Row(f"a pass of {part['rows']} rows, {name}, ms", spread(one["pass_ms"], 1))
        yield Row("the observers after it, ms", spread(one["observers_ms"], 1))


def _of_step_reading(part: Part) -> Iterator[Row]:
    yield Row("p50 of the steps beside a long prompt over alone", f"{part['p50_over_alone']:.2f}")
    for name, one in part["step_ms"].items():
        yield Row(f"a step of {part['rows']} rows, {name}, ms", spread(one, 1))


STEP_AIMS = {
    "one add each": Aim(0.97),
    "one clamp each": Aim(0.93),
    "one ablation each": Aim(0.93),
    "one gated clamp each": Aim(0.93),
    "8 edits each": Aim(0.8),
}


def _of_step_edits(part: Part) -> Iterator[Row]:
    for name, one in part["kinds"].items():
        ratio = one["rate_over_plain"]
        yield aimed(f"{part['rows']} rows, {name}, steps over plain", ratio, STEP_AIMS.get(name))


# ---------------------------------------------------------------- real models

REAL = ("smollm2-135m-instruct", "gemma-3-270m")
REAL_AIMS = {
    "bf16 over llama.cpp BF16": {"1": 1.0, "8": 1.5, "32": 2.0},
    "Q8 over llama.cpp Q8_0": {"1": 1.0, "8": 1.2, "32": 1.5},
}
"""The least ratio of tokens per second, by the requests at once."""
REAL_STEERED = Aim(0.95)
REAL_STEERED_KINDS = {
    "sae_steering": "each with its own `sae_steering`",
    "8 edits each": "each with 8 edits of its own",
    "a sensed cluster": "with a sensed cluster of 20 members",
    "monitoring": "with monitoring of the top 10 features",
}


def _of_real(part: Part) -> Iterator[Row]:
    for name, figures in part["ratios"].items():
        aims = REAL_AIMS.get(name, {})
        for count, values in figures["tokens_per_s"].items():
            aim = Aim(aims[count]) if count in aims else None
            yield aimed(f"{part['title']}, {name}, {count} at once, tokens/s", values, aim)
        for count, values in figures["first_token_s"].items():
            aim = FIRST_TOKEN if count in aims else None
            yield aimed(f"{part['title']}, {name}, {count} at once, first token", values, aim)


def _of_real_steered(part: Part) -> Iterator[Row]:
    for kind, ratios in part["ratios"].items():
        for count, values in ratios.items():
            name = f"{part['title']}, {count} at once, {REAL_STEERED_KINDS[kind]}, over plain, tokens/s"
            yield aimed(name, values, REAL_STEERED)


# ---------------------------------------------------------------- the parts of benchmarks.run


def _of_service(part: Part) -> Iterator[Row]:
    for key, name, digits in (
        ("added_seconds_per_request", "a completion of one token", 2),
        ("added_seconds_per_streamed_token", "a streamed token", 3),
    ):
        times = part[key]
        through, bare = (times[side]["median"] * 1e3 for side in ("service", "engine"))
        added = times["added_of_medians"] * 1e3
        yield Row(
            f"{name}: through the service, by the bare engine, added",
            f"{through:.{digits}f} ms, {bare:.{digits}f} ms, {added:.{digits}f} ms",
        )
    live = part["liveness_seconds_while_loading"]
    yield Row(
        "the liveness probe while a 0.5B-shaped model loads: median, p99",
        f"{live['median'] * 1e3:.1f} ms, {live['p99'] * 1e3:.1f} ms",
    )


def _of_engine(part: Part) -> Iterator[Row]:
    for count, values in part["decode_tokens_per_s"].items():
        yield Row(f"decode, rows: {count}, tokens/s", spread(values, 1))
    yield Row("32 rows over 1 row", f"{part['rows_32_over_1']:.1f}")
    yield Row("transformers `generate`, 1 row, tokens/s", spread(part["generate_tokens_per_s"], 1))
    yield Row("our 1 row over `generate`", f"{part['one_row_over_generate']:.2f}")
    gigabytes = part["read_bandwidth_bytes_per_s"]["median"] / 1e9
    yield Row(
        f"limit of 1 row by memory bandwidth ({gigabytes:.1f} GB/s), tokens/s",
        f"{part['bandwidth_limit_tokens_per_s']:.1f}",
    )
    yield Row("our 1 row over that limit", f"{part['one_row_over_bandwidth_limit']:.2f}")
    yield Row(
        f"prefill of {part['prefill_tokens']} tokens, tokens/s",
        spread(part["prefill_tokens_per_s"], 0),
    )
    yield Row(
        "prefill over a plain forward pass with a cache",
        spread(part["prefill_over_plain_forward"]),
    )
    yield Row(
        "a step of 8 rows with 8 different steerings over one without",
        spread(part["steering_step_ratio_8_rows"], 3),
    )


def _of_inference(part: Part) -> Iterator[Row]:
    yield Row(
        f"a scoring request of {part['scoring_prompts']} prompts, seconds",
        spread(part["scoring_seconds"]),
    )
    yield Row(
        "scoring throughput over the best plain batched passes",
        spread(part["scoring_over_best_plain_throughput"]),
    )
    for count, values in part["masked_step_ratio"].items():
        yield Row(
            f"a decode step with a response format over one without, rows: {count}",
            spread(values, 3),
        )
    yield Row(
        f"first token of a second turn after {part['history_tokens']:,} tokens, its beginning kept, seconds",
        spread(part["second_turn_seconds_kept"], 3),
    )
    yield Row("the same, computed again, seconds", spread(part["second_turn_seconds_computed"], 3))


def _of_saes(part: Part) -> Iterator[Row]:
    yield Row(
        f"attach {part['sae']['d_sae']:,} features, without and with the self-check, seconds",
        f"{part['attach_seconds']['median']:.3f}, {part['attach_with_check_seconds']['median']:.2f}",
    )
    grown = " and ".join(f"{one['grown_mib']:.0f}" for one in _memories(part["memory"]))
    yield Row("memory that an engine grows by, float32 and bfloat16, MiB", grown)
    for kind, word in (("steering_step_ratio", "steered"), ("monitoring_step_ratio", "monitored")):
        for name, values in part[kind].items():
            yield Row(f"a step {word} over one without, {name}", spread(values, 3))


def _memories(memory: Part) -> list[Part]:
    return [one for one in memory.values() if isinstance(one, Mapping)]


def _of_sensing(part: Part) -> Iterator[Row]:
    for name, values in part["step_ratio"].items():
        yield Row(f"a sensed step over a plain one, {name}", spread(values, 3))


# ---------------------------------------------------------------- the parts of benchmarks.replicas


def _of_scaling(part: Part) -> Iterator[Row]:
    for count, values in part["over_linear"].items():
        name = f"simulated replicas: {count} over {count} times the tokens/s of 1"
        yield aimed(name, values, LINEAR if int(count) >= 8 else None)


def _of_latency(part: Part) -> Iterator[Row]:
    for key, what, aim in (
        ("added_first_token_s", "the first token", ADDED_FIRST_MS),
        ("added_way_s", "each token", ADDED_TOKEN_MS),
    ):
        for name, values in part[key].items():
            in_ms = {k: v if k == "count" else v * 1e3 for k, v in values.items()}
            shown = f"a fleet of {name} adds to {what}, ms"
            yield Row(shown, spread(in_ms, 3), str(aim), aim.outcome(values["median"] * 1e3))


def _of_steering(part: Part) -> Iterator[Row]:
    for name, cell in part["cells"].items():
        alone, beside = (cell[key]["p50"] * 1e3 for key in ("alone_s", "beside_requests_s"))
        yield Row(
            f"a change of the steering, {name}: alone, beside requests, p50",
            f"{alone:.1f} ms, {beside:.1f} ms",
        )
    checked = part["answers_checked"]
    yield Row(
        f"answers of {checked:,} with steering that had been replaced before they began",
        str(part["answers_out_of_order"]),
    )


def _of_limit(part: Part) -> Iterator[Row]:
    for name, cell in part["cells"].items():
        yield Row(f"most tokens/s through the service, {name}", spread(cell["tokens_per_s"], 0))
        yield Row(
            f"processor time of the service for each token, {name}, \u00b5s",
            spread(cell["service_us_per_token"], 1),
        )


def _in_ms(values: Part) -> str:
    return f"{values['p50'] * 1e3:,.1f} ms, {values['p99'] * 1e3:,.1f} ms"


def _of_many(part: Part) -> Iterator[Row]:
    for name, cell in part["cells"].items():
        yield Row(f"{name}, {cell['streams']:,} streams, tokens/s", spread(cell["tokens_per_s"], 0))
        ways = " and ".join(ms(cell["way_s"][share], 1) for share in ("p50", "p99"))
        yield Row(f"{name}: way of a token, p50 and p99, ms", ways)
        yield Row(
            f"{name}: processor time of the service for each token, \u00b5s",
            spread(cell["service_us_per_token"], 1),
        )
        yield Row(f"{name}: a change of the steering, p50, p99", _in_ms(cell["change_alone_s"]))
        yield Row(f"{name}: memory of the service", f"{cell['memory_bytes'] / 2**20:.0f} MiB")


def _of_streams(part: Part) -> Iterator[Row]:
    name = f"{part['streams']:,} open streams, {part['replicas']} replicas"
    yield Row(f"{name}: streams opened per second", f"{part['streams'] / part['opening_s']:.0f}")
    yield Row(f"{name}: tokens/s", f"{part['tokens_per_s']:,.0f}")
    yield Row(f"{name}: way of a token, p50, p99", _in_ms(part["way_s"]))
    yield Row(f"{name}: liveness, p50, p99", _in_ms(part["liveness_s"]))
    yield Row(
        f"{name}: share of a core that the service takes",
        f"{part['service_share_of_a_core']:.2f}",
    )
    yield Row(f"{name}: memory for each stream", f"{part['bytes_per_stream'] / 1024:.0f} KiB")
    yield Row(f"{name}: open files for the streams", f"{part['open_files']:,}")
    yield Row(f"{name}: all clients leave, idle after", f"{part['idle_after_s']:.2f} s")


def _of_files(part: Part) -> Iterator[Row]:
    name = f"{part['streams']:,} streams to a service that may open {part['open_files']} files"
    for end in ("answered", "refused", "cut", "hung", "other"):
        yield Row(f"{name}: {end}", str(part[end]))
    yield Row(f"{name}: liveness, p50, p99", _in_ms(part["liveness_s"]))


def _of_requests(part: Part) -> Iterator[Row]:
    for name, cell in part["cells"].items():
        shown = f"requests of one token, {name}, {part['clients']} clients"
        yield Row(f"{shown}: requests/s", f"{cell['per_s']:.0f}")
        yield Row(f"{shown}: p50, p99", _in_ms(cell["time_s"]))
        yield Row(f"{shown}: processor time of the service, \u00b5s", f"{cell['service_us']:.0f}")


def _of_live(part: Part) -> Iterator[Row]:
    for count, cell in part["cells"].items():
        name = f"{int(count):,} live clients, {part['events_per_s']} events/s"
        share = f"{cell['service_share_of_a_core']:.2f}"
        yield Row(f"{name}: share of a core that the service takes", share)
        if cell["sent"]:
            yield Row(f"{name}: received of sent", f"{cell['received']:,} of {cell['sent']:,}")
            yield Row(f"{name}: delay, p50, p99", _in_ms(cell["delay_s"]))
            own = f"{cell['service_us_per_event']:.0f}"
            yield Row(
                f"{name}: processor time of the service for each event and client, \u00b5s", own
            )
        yield Row(f"{name}: liveness, p50, p99", _in_ms(cell["liveness_s"]))


def _of_epochs(part: Part) -> Iterator[Row]:
    for name, cells in part["cells"].items():
        for clients, cell in cells.items():
            shown = f"changes of the steering per second, {name}, clients: {clients}"
            yield Row(shown, f"{cell['per_s']:.0f}")


# ---------------------------------------------------------------- the parts of benchmarks.cards


def _of_card_bandwidth(part: Part) -> Iterator[Row]:
    yield Row("read bandwidth of the card, GB/s", spread(part["read_bytes_per_s"], 0, 1e-9))
    yield Row("limit of one row by memory bandwidth, tokens/s", f"{part['limit_tokens_per_s']:.0f}")


def _of_card_graphs(part: Part) -> Iterator[Row]:
    state = part["decoding"]
    ended = [_ERROR.sub(", after an error of a library", why) for why in part["given_up"]]
    yield Row("decode passes", f"{state['decoding']}: {'; '.join(ended) or state['reason']}")
    for rows_, called in part["called_ms"].items():
        shown = f"{spread(called)}, {spread(part['static_ms'][rows_])}"
        yield Row(f"a step of {rows_} rows, called and recorded, ms", shown)
    yield Row("one row over the bandwidth limit", f"{part['one_row_over_bandwidth_limit']:.2f}")
    yield Row("64 rows over 1 row", f"{part['rows_64_over_1']:.1f}")


def _of_card_steps(part: Part) -> Iterator[Row]:
    for name, kind in part["kinds"].items():
        yield Row(
            f"{part['rows']} rows, {name}, ms a step, and as many steps over plain",
            f"{spread(kind['step_ms'])}, {spread(kind['rate_over_plain'])}",
        )


def _of_card_http(part: Part) -> Iterator[Row]:
    for name, cells in part["cells"].items():
        for count, cell in cells.items():
            yield Row(f"{count} at once, {name}, tokens/s", spread(cell["tokens_per_s"], 0))
    for name, values in part["ratios"].items():
        yield aimed(f"{name}, tokens/s", values, None)


def _of_card_corpus(part: Part) -> Iterator[Row]:
    streams = f"{part['streams']} live streams"
    name = f"a corpus of {part['tokens']:,} tokens read beside {streams}, tokens/s"
    yield Row(name, f"{part['tokens_per_s']:,.0f}")
    for share, values in part["ratios"].items():
        yield aimed(f"gap of {streams} beside the corpus over alone, {share}", values, None)


def _of_card_memory(part: Part) -> Iterator[Row]:
    for name, one in part["mib"].items():
        yield Row(
            f"{name}, weights predicted and taken, all predicted and at the peak, left behind, MiB",
            f"{one['predicted_weights']:,}, {one['loaded']:,}, {one['predicted_needed']:,}, "
            f"{one['peak']:,}, {one['left']:,}",
        )


def _of_card_swaps(part: Part) -> Iterator[Row]:
    yield Row(f"a load in place of another model, {part['swaps']} times, s", spread(part["load_s"]))
    yield Row(
        "memory of the card after the first loads and after the last, MiB",
        f"{part['used_mib'][:2]}, {part['used_mib'][-2:]}",
    )


def _of_card_wide(part: Part) -> Iterator[Row]:
    yield Row(f"to attach an SAE of {part['d_sae']:,} features, s", f"{part['attach_s']:.1f}")
    for name, values in part["ratios"].items():
        yield aimed(f"{name}, over {part['requests']} plain requests, tokens/s", values, WIDE)


def _of_card_seeds(part: Part) -> Iterator[Row]:
    for name, values in part["ratios"].items():
        yield aimed(f"{name}, in shared passes, tokens/s", values, SEEDED)
    for count, same in part["same_again"].items():
        yield Row(
            f"{count} with seeds: texts that were the same when asked again",
            f"{same} of {part['asked_again'][count]}",
        )


def _of_card_precisions(part: Part) -> Iterator[Row]:
    for precision, cells in part["cells"].items():
        for count, cell in cells.items():
            name = "16 bits" if precision == "FP16" else precision
            yield Row(f"{count} at once, {name}, tokens/s", spread(cell["tokens_per_s"], 0))
    for name, values in part["ratios"].items():
        yield aimed(f"{name}, tokens/s", values, SMALLER)


_ERROR = re.compile(r": \w*(Error|Exception)\b.*", re.DOTALL)
"""What an exception says, at the end of a reason. The file of the run has it."""

CARD: dict[str, Callable[[Part], Iterator[Row]]] = {
    "bandwidth": _of_card_bandwidth,
    "engine": _of_engine,
    "graphs": _of_card_graphs,
    "steps": _of_card_steps,
    "http": _of_card_http,
    "steered": _of_steered,
    "wide-sae": _of_card_wide,
    "seeds": _of_card_seeds,
    "precisions": _of_card_precisions,
    "memory": _of_card_memory,
    "swaps": _of_card_swaps,
}
"""The parts that are measured for each size of a model; `card-http-7b` is the part `http` of 7B."""
CARD_SIZES = ("none", "tiny", "0.5b", "7b")

ROWS: dict[str, Callable[[Part], Iterator[Row]]] = {
    **{f"real-{model}": _of_real for model in REAL},
    **{f"real-{model}-steered": _of_real_steered for model in REAL},
    "bandwidth": _of_bandwidth,
    "concurrency-91m": _of_concurrency,
    "concurrency-0.5b": _of_concurrency,
    "long-prompts": _of_long_prompts,
    "steered": _of_steered,
    "kept-beginnings": _of_kept_beginnings,
    "few-shot": _of_few_shot,
    "lm-eval": _of_lm_eval,
    "neighbours": _of_neighbours,
    "beside-batch": _of_beside_batch,
    "beside-corpus-whole": _of_beside_corpus,
    "beside-jobs": _of_beside_jobs,
    "mixed": _of_mixed,
    "token-costs": _of_token_costs,
    "step-times": _of_step_times,
    "step-watched": _of_step_watched,
    "step-reading": _of_step_reading,
    "step-edits": _of_step_edits,
    "service": _of_service,
    "engine": _of_engine,
    "inference": _of_inference,
    "saes": _of_saes,
    "sensing": _of_sensing,
    "replicas-scaling": _of_scaling,
    "replicas-latency": _of_latency,
    "replicas-steering": _of_steering,
    "replicas-limit": _of_limit,
    "replicas-many": _of_many,
    "replicas-streams": _of_streams,
    "replicas-files": _of_files,
    "replicas-requests": _of_requests,
    "replicas-live": _of_live,
    "replicas-epochs": _of_epochs,
    "card-corpus": _of_card_corpus,
} | {f"card-{part}-{size}": made for size in CARD_SIZES for part, made in CARD.items()}
