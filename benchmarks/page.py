"""Writes the tables and plots of docs/performance.md and docs/performance-history.md: `python -m benchmarks.page`.

Each part comes from the newest file of benchmarks/results/ that has it. Runs with `--quick` do not count.
docs/performance.md has the parts of one build, the last one that measured real models; the history has all others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import replica_sections, tables
from benchmarks.markdown import medians, prose, table, two_columns
from benchmarks.tables import Part, ms, rows, spread

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
HISTORY = ROOT / "docs" / "performance-history.md"
PLOTS = ROOT / "docs" / "performance"
BEGIN = "<!-- Written by `python -m benchmarks.page` from benchmarks/results/; edit the code instead. -->"
END = "<!-- End of the written part. -->"
OPENING = "<!-- Written by `python -m benchmarks.page`: the build. -->"
OPENING_END = "<!-- End of the build. -->"
NARROW = "-without-avx-512"
"""The end of the names of parts that were measured on a processor without AVX-512."""
DRAWN = {
    "concurrency-91m": ("throughput", "Tokens per second against the requests at once, 91M"),
    "concurrency-0.5b": ("throughput", "Tokens per second against the requests at once, 0.5B"),
    "long-prompts": ("long_prompts", "Gaps between the tokens of short requests"),
}
"""The function of `plots` that draws a part, and the text in place of the plot."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A part with the file that it is from."""

    file: str
    version: str
    machine: Mapping[str, Any]
    figures: Part

    @property
    def digest(self) -> str:
        """What the plot of the part is drawn from."""
        return hashlib.sha256(json.dumps(self.figures, sort_keys=True).encode()).hexdigest()

    @property
    def is_narrow(self) -> bool:
        """Whether the processor has no AVX-512. Runs that do not say so had it."""
        return self.machine.get("instructions") == "AVX2"

    @property
    def source(self) -> str:
        of = self.machine
        card = of["card"] or "no card"
        kind = ", without AVX-512" if self.is_narrow else ""
        return prose(
            f"From [{self.file}](../benchmarks/results/{self.file}): build `{self.version}`; {of['processor']}{kind}, "
            f"{of['cores']} cores, {of['memory_gib']} GiB, {card}; torch {of['torch']}, transformers "
            f"{of['transformers']}."
        )


def measured(results: Path = RESULTS) -> dict[str, Measured]:
    """The newest figures of each part. Processors without AVX-512 have parts of their own, which end with NARROW."""
    newest: dict[str, Measured] = {}
    for file in sorted(results.glob("*.json")):
        whole = json.loads(file.read_text(encoding="utf-8"))
        if whole.get("quick"):
            continue
        for part in tables.ROWS:
            if part in whole and "failed" not in whole[part]:
                one = Measured(file.name, whole.get("version", ""), whole["machine"], whole[part])
                newest[part + NARROW * one.is_narrow] = one
    return newest


def of_one_build(parts: Mapping[str, Measured]) -> dict[str, Measured]:
    """The parts of the last build that measured real models, or of the last build where none did."""
    of_real = [one for part, one in parts.items() if part.startswith("real-")]
    last = max(of_real or parts.values(), key=lambda one: one.file)
    return {part: one for part, one in parts.items() if one.version == last.version}


def opening(parts: Mapping[str, Measured]) -> str:
    """The first screen of the page: which build this is, and its figures beside llama.cpp and under steering."""
    first = next(iter(parts.values()))
    build = prose(f"All figures of this page are those of one build: {_build(first.version)}.")
    sources = dict.fromkeys(one.source for one in parts.values())
    figures = [one.figures for part, one in parts.items() if part.startswith("real-")]
    return "\n\n".join(
        [
            OPENING,
            build,
            *sources,
            *_beside_llama_cpp([one for one in figures if "peers" in one]),
            *_over_plain([one for one in figures if "peers" not in one]),
            OPENING_END,
        ]
    )


def written(parts: Mapping[str, Measured]) -> str:
    """What was aimed at in these parts, then a section for each of them."""
    sections = [*_aims(parts)]
    for part, (title, section) in SECTIONS.items():
        if part in parts:
            text = "\n\n".join(section(part, parts[part].figures))
            sections.append(f"## {title}\n\n{parts[part].source}\n\n{text}")
        narrow = parts.get(part + NARROW)
        if narrow is not None:
            texts = [text for text in section(part, narrow.figures) if not text.startswith("![")]
            text = "\n\n".join([narrow.source, *texts])
            sections.append(f"## {title}{_kind(part + NARROW, parts)}\n\n{text}")
    return "\n\n".join([BEGIN, *sections, END])


def replaced(page: str, text: str) -> str:
    """The page with another written part. Its first and its last line say which part that is."""
    begin, *_, end = text.splitlines()
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{text}{after}"


def renewed(page: str, parts: Mapping[str, Measured]) -> str:
    """The page of the last build with both written parts as these figures say."""
    of_build = of_one_build(parts)
    return replaced(replaced(page, opening(of_build)), written(of_build))


def renewed_history(page: str, parts: Mapping[str, Measured]) -> str:
    """The page of the other builds with its written part as these figures say."""
    of_build = of_one_build(parts)
    return replaced(page, written({p: one for p, one in parts.items() if p not in of_build}))


# ---------------------------------------------------------------- sections


def _aims(parts: Mapping[str, Measured]) -> Iterator[str]:
    """What was aimed at, over these parts."""
    found = [
        (_size(part) + _kind(part, parts), row)
        for part, one in parts.items()
        for row in rows(part.removesuffix(NARROW), one.figures)
        if row.aim
    ]
    if found:
        lines = [(f"{row.name}{size}", row.figure, row.aim, row.outcome) for size, row in found]
        yield "## What was aimed at\n\n" + table(("", "measured", "aim", "outcome"), lines)


def _size(part: str) -> str:
    if part.startswith("card-"):
        return f", {part.rpartition('-')[2].upper()} on a card"
    sizes = {"concurrency-91m": ", 91M", "concurrency-0.5b": ", 0.5B"}
    return sizes.get(part.removesuffix(NARROW), "")


def _kind(part: str, parts: Mapping[str, Measured]) -> str:
    """What tells a part of a processor without AVX-512 from those of other processors, where both are on one page."""
    is_told = part.endswith(NARROW) and not all(one.is_narrow for one in parts.values())
    return ", without AVX-512" if is_told else ""


def _build(version: str) -> str:
    """The version of a build in words, with the commit that it names."""
    named = re.search(r"\+(?:\d+\.)?g([0-9a-f]+)(\.dirty)?", version)
    if named is None:
        return f"`{version}`, which names no commit"
    changed = ", with changes that were in no commit" if named[2] else ""
    return f"`{version}`, which is the commit `{named[1]}`{changed}"


LLAMA_CPP = {
    "bf16": ("bf16 over llama.cpp BF16", "steerserve", tables.LLAMA),
    "Q8": ("Q8 over llama.cpp Q8_0", "steerserve Q8", "llama.cpp Q8_0"),
}


def _beside_llama_cpp(models: list[Part]) -> Iterator[str]:
    """Tokens per second of ours and of llama.cpp, and the ratio of both, by the requests at once."""
    lines = []
    for figures in models:
        for precision, (ratio, *names) in LLAMA_CPP.items():
            cells = figures["cells"]
            if ratio in figures["ratios"]:
                shown = [
                    " / ".join(
                        f"{cells[name][count]['tokens_per_s']['median']:.0f}" for name in names
                    )
                    + f" ({values['median']:.2f})"
                    for count, values in figures["ratios"][ratio]["tokens_per_s"].items()
                ]
                lines.append((f"{figures['title']}, {precision}", *shown))
    if lines:
        counts = [f"{count} at once" for count in models[0]["cells"]["steerserve"]]
        yield table(("tokens/s, steerserve / llama.cpp (ratio)", *counts), lines)


def _over_plain(models: list[Part]) -> Iterator[str]:
    """Tokens per second of steered and watched requests over those of plain ones, by the requests at once."""
    lines = [
        (
            f"{figures['title']}, {tables.REAL_STEERED_KINDS[kind]}",
            *(f"{values['median']:.2f}" for values in ratios.values()),
        )
        for figures in models
        for kind, ratios in figures["ratios"].items()
    ]
    if lines:
        counts = [f"{count} at once" for count in next(iter(models[0]["ratios"].values()))]
        yield table(("tokens/s over plain requests", *counts), lines)


def _real(part: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Prompts of {figures['prompt_tokens']} tokens of the Brown corpus, greedy answers of {figures['tokens']} "
        "tokens. Times are in ms. The p95 is over all answers of all rounds."
    )
    head = ("", "at once", "tokens/s", "first token p50", "p95", "answers", "rounds cut")
    lines = [
        (
            name,
            count,
            spread(cell["tokens_per_s"], 1),
            ms(first["p50"]) if first else "",
            f"{first['p95'] * 1e3:,.0f}" if first else "",
            str(cell["answers"]),
            str(cell["rounds_cut"]),
        )
        for name, cells in figures["cells"].items()
        for count, cell in cells.items()
        for first in [cell["first_token_s"]]
    ]
    yield table(head, lines)
    if notes := [*_same_texts(figures), *_peers(figures)]:
        yield "\n".join(notes)


def _same_texts(figures: Part) -> Iterator[str]:
    for name, one in figures["same_texts"].items():
        yield (
            f"- {name}: {one['equal']} of {one['texts']} greedy answers of {one['tokens']} tokens are the same text as "
            f"ours; the median has {one['median_share_of_the_same_beginning']:.0%} of its text as ours."
        )


def _real_steered(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"An SAE {figures['sae']} with {figures['d_sae']:,} features is attached at layer {figures['layer']}. Requests "
        f"of each kind are compared with plain ones directly before or after them: {figures['edits']} edits of its own "
        f"in each request, `sae_steering` of its own in each request, a sensed cluster of {figures['members']} members, "
        f"and monitoring of the top {figures['top_k']} features."
    )
    counts = list(next(iter(figures["cells"].values())))
    lines = [
        (
            kind,
            *(
                f"{spread(cells[count]['tokens_per_s'], 0)}; {_ratio(figures['ratios'][kind].get(count))}"
                for count in counts
            ),
        )
        for kind, cells in figures["cells"].items()
    ]
    yield table(("tokens/s; over plain", *(f"{count} at once" for count in counts)), lines)


def _concurrency(part: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"A Qwen2 shape with random weights in bfloat16; answers of {figures['tokens']} tokens, short prompts. Answers "
        "of steerserve are sampled (temperature 0.8, top-p 0.9) where nothing else is said; the peers are greedy. "
        "Where a name has Q8 or Q4, the same checkpoint was loaded so. A "
        f"round is cut after {figures['cut_seconds']:.0f} s, and counts the tokens until then. Times are in ms, and "
        "medians of the rounds."
    )
    yield _plot(part)
    head = ("", "at once", "tokens/s", "first token p50", "p99", "gap p50", "p99", "rounds (cut)")
    lines = [
        (
            name,
            count,
            spread(cell["tokens_per_s"], 1),
            *medians(cell["first_token_s"]),
            *medians(cell["gap_s"]),
            f"{cell['tokens_per_s']['count']} ({cell['rounds_cut']})",
        )
        for name, cells in figures["cells"].items()
        for count, cell in cells.items()
    ]
    yield table(head, lines)
    others = [row for row in rows(part, figures) if not row.aim]
    if others:
        yield two_columns(others)
    if notes := list(_peers(figures)):
        yield "\n".join(notes)


def _peers(figures: Part) -> Iterator[str]:
    """How the peers were run, and which were left out."""
    for name, of in figures["peers"].items():
        options = ", `" + of["options"] + "`" if of["options"] else ""
        yield f"- {name}: {of['library']}, {of['sampling']}{options}; {of['environment']}."
    for name, why in figures["left_out"].items():
        yield f"- {name} was left out: {_line(why)}"


def _long_prompts(part: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"{figures['short']} clients repeat short requests of 96 tokens to the 91M shape. After a while one further "
        f"client sends a prompt of {figures['long_tokens']:,} tokens, or four clients send one each. The first phase "
        "lasts until every long prompt has its first token; then the long requests decode beside the short ones."
    )
    yield _plot(part)
    head = ("", "tokens/s of the short", "gap p50, ms", "gap p99, ms")
    lines = [
        (name, spread(one["tokens_per_s"], 0), ms(one["gap_s"]["p50"]), ms(one["gap_s"]["p99"]))
        for name, one in figures["phases"].items()
    ]
    yield table(head, lines)
    first = figures["first_token_of_the_last_long_s"]
    yield table(
        ("", "first token of the last long prompt, s"),
        [(name, spread(seconds, 1)) for name, seconds in first.items()],
    )


def _steered(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"{figures['requests']} chats at once of {figures['tokens']} tokens each, 91M, with an SAE of "
        f"{figures['d_sae']:,} features attached. The sensed cluster fired {figures['firings_of_the_cluster']:,} times."
    )
    lines = [
        (name, spread(cell["tokens_per_s"], 0), _ratio(figures["ratios"].get(name)))
        for name, cell in figures["cells"].items()
    ]
    yield table(("", "tokens/s", "over plain requests"), lines)


def _kept_beginnings(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"A plain request reads a prompt of {figures['prompt_tokens']:,} tokens. Then a request with the same prompt "
        "is sent. Edits of generated positions share the kept beginning of the plain request. Edits of all positions "
        "do not."
    )
    lines = [
        (name, ms(seconds), _ratio(figures["ratios"].get(name)))
        for name, seconds in figures["first_token_s"].items()
    ]
    yield table(("", "first token, ms", "over reading anew"), lines)


def _few_shot(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"{figures['questions']} questions of {figures['question_tokens']} tokens follow the same examples of "
        f"{figures['examples']:,} tokens, with {figures['continuations']} continuations of "
        f"{figures['continuation_tokens']} tokens each. Their log-probabilities are asked over HTTP as `lm-eval` asks "
        f"for them, with `echo`, on {figures['connections']} connections. Transformers reads them one after the other "
        "in the process of the client, with the keys and values of the examples kept, and without. Each round has new "
        "examples, and its time includes reading them."
    )
    lines = [
        (name, spread(rate, 1), _ratio(figures["ratios"].get(name)))
        for name, rate in figures["per_s"].items()
    ]
    yield table(("", "continuations/s", "ours over it"), lines)


def _lm_eval(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"`{figures['harness']}` answers {figures['questions']} questions of each task after {figures['shots']} "
        "examples: with the model `steerserve` over HTTP, with its requests as lines of a batch, and with its model "
        "`hf`, which is transformers in the process of the harness, with its defaults. The time is that of the calls "
        f"of the model, with tokenizing. The service has {figures['slots']} slots, and the other settings are its "
        "defaults. No two rounds have the same questions, and both must give the same answers. Transformers reads a "
        f"question once for choices of one token. The model is in {figures['dtype']}."
    )
    lines = [
        (
            task["about"] if at == 0 else "",
            f"{task['prompt_tokens']:,}" if at == 0 else "",
            name,
            spread(rate, 1),
            _ratio(task["ratios"].get(name)),
        )
        for task in figures["tasks"].values()
        for at, (name, rate) in enumerate(task["per_s"].items())
    ]
    yield table(("", "tokens of a prompt", "", "requests/s", "over transformers"), lines)


def _neighbours(_: str, figures: Part) -> Iterator[str]:
    yield "The neighbour is one process that keeps a core busy."
    lines = [
        (
            name,
            spread(figures["alone"][name]["tokens_per_s"], 0),
            spread(figures["beside"][name]["tokens_per_s"], 0),
            _ratio(ratio),
            "{} to {}".format(
                *(
                    ms(figures[where][name]["gap_s"]["p99"]).split(" ")[0]
                    for where in ("alone", "beside")
                )
            ),
        )
        for name, ratio in figures["ratios"].items()
    ]
    yield table(("", "tokens/s alone", "beside", "beside over alone", "gap p99, ms"), lines)


def _beside_batch(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Each live client asks again as soon as its answer of {figures['answer_tokens']} tokens is there. The batch "
        f"has more lines than end meanwhile, and the service has {figures['slots']} slots. Without live requests a "
        f"batch has {spread(figures['batch_alone_tokens_per_s'], 0)} tokens/s."
    )
    lines = [
        (
            f"{name}, {where}",
            *(
                ms(figures[where][name][kind][share], 1)
                for kind in ("gap_s", "first_token_s")
                for share in ("p50", "p99")
            ),
            spread(figures["batch_beside_tokens_per_s"][name], 0) if where == "beside" else "",
        )
        for name in figures["ratios"]
        for where in ("alone", "beside")
    ]
    yield table(
        ("", "gap p50, ms", "p99", "first token p50, ms", "p99", "tokens/s of the batch"), lines
    )


def _beside_jobs(_: str, figures: Part) -> Iterator[str]:
    texts = figures["texts"]
    yield prose(
        f"Each live client asks again as soon as its answer of at most {figures['answer_tokens']} tokens is there. The "
        f"service has {figures['slots']} slots and an SAE that is attached. The corpus has "
        f"{figures['corpus_tokens']:,} tokens, the contrast twice {texts['a contrast']:,} texts, the training twice "
        f"{texts['a training']:,}; the effects are those of 16 strengths with 16 random directions. The last column "
        f"is the part of the job that is done in the {figures['seconds']:g} s of a round."
    )
    lines = [
        (
            f"{figures['streams'][name]} live, {'alone' if where == 'alone' else f'beside {name}'}",
            *(ms(figures[where][name]["gap_s"][share], 1) for share in ("p50", "p99")),
            spread(figures[where][name]["tokens_per_s"], 0),
            f"{spread(figures['share_of_the_job'][name], 2, 100)} %" if where == "beside" else "",
        )
        for name in figures["ratios"]
        for where in ("alone", "beside")
    ]
    yield table(("", "gap p50, ms", "p99", "tokens/s", "of the job"), lines)


def _beside_corpus(_: str, figures: Part) -> Iterator[str]:
    alone, limit = figures["counted"], figures["limit_bytes"] >> 20
    yield prose(
        f"{figures['streams']} live clients ask as above beside one corpus of {figures['tokens']:,} tokens, which is "
        f"read to its end in {figures['seconds'] / 60:.1f} minutes, {figures['tokens_per_s']:,.0f} tokens/s. In the "
        f"middle the service is killed with SIGKILL and started again: {figures['lost_by_kill']} tokens are read a "
        "second time. Without live streams the same corpus takes "
        f"{figures['seconds_without_live'] / 60:.1f} minutes. Both readings "
        f"count {alone[0]:,} and {alone[1]:,} tokens; of {figures['features_compared']} features "
        f"{figures['features_that_differ']} have other statistics or examples. The corpus takes at most "
        f"{figures['most_stored_bytes'] / 2**20:.0f} MiB in the database while it is read, of {limit} MiB that are "
        f"allowed, and {figures['stored_bytes_at_the_end'] / 2**20:.1f} MiB when it is done."
    )
    lines = [
        (
            where,
            *(ms(figures[key]["gap_s"][share], 1) for share in ("p50", "p99")),
            spread(figures[key]["tokens_per_s"], 0),
        )
        for where, key in (("alone", "alone"), ("beside the corpus", "beside"))
    ]
    yield table(("", "gap p50, ms", "p99", "tokens/s"), lines)


def _step_times(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"The running batch decodes without HTTP, control plane and client (`python -m benchmarks.step_times`). The "
        f"first column is the median of {figures['steps']} steps, the second what the batch alone would write. The "
        "others are milliseconds of a step, as the profiler of PyTorch tells them; what is left of a step when no "
        "operator runs is Python. A row with a prompt of 4,000 tokens reads its cache in every step."
    )
    cases = figures["cases"]
    totals: Counter[str] = sum(
        (Counter(case["milliseconds"]) for case in cases.values()), Counter()
    )
    kinds = [kind for kind, _ in totals.most_common()]
    lines = [
        (
            name,
            spread(case["step_ms"], 1),
            f"{case['tokens_per_s']:,.0f}",
            *(f"{case['milliseconds'][kind]:.1f}" for kind in kinds),
        )
        for name, case in cases.items()
    ]
    yield table(("", "a step, ms", "tokens/s", *kinds), lines)


def _step_watched(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Steps of {figures['rows']} rows in the process (`python -m benchmarks.step_times`), with an SAE of "
        f"{figures['d_sae']:,} features. The observers copy values in the pass, and encode them after it. To encode "
        f"the tokens of one step alone takes {spread(figures['encoding_ms'], 1)} ms."
    )
    lines = [
        (name, spread(one["pass_ms"], 1), spread(one["observers_ms"], 1))
        for name, one in figures["kinds"].items()
    ]
    yield table(("", "the pass, ms", "the observers after it, ms"), lines)


def _step_reading(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Steps of {figures['rows']} rows in the process (`python -m benchmarks.step_times`), alone and while one "
        f"prompt of {figures['prompt_tokens']:,} tokens is read, {figures['prompts']} times. A part of the prompt is "
        f"read in {figures['share_with_a_part']:.0%} of the steps. The p50 of all steps beside the prompt is "
        f"{figures['p50_over_alone']:.2f} times the p50 alone."
    )
    lines = [(name, spread(one, 1), str(one["count"])) for name, one in figures["step_ms"].items()]
    yield table(("", "a step, ms", "steps"), lines)


def _step_edits(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Steps of {figures['rows']} rows in the process (`python -m benchmarks.edit_steps`), with an SAE of "
        f"{figures['d_sae']:,} features in the middle of the model. Each row has features and directions of its own. "
        "Blocks of steps with edits take turns with blocks of the same rows without."
    )
    lines = [
        (
            name,
            spread(one["step_ms"], 1),
            spread(one["plain_ms"], 1),
            spread(one["rate_over_plain"], 2),
        )
        for name, one in figures["kinds"].items()
    ]
    yield table(("", "a step, ms", "a plain step, ms", "steps over plain"), lines)


def _plain(part: str, figures: Part) -> Iterator[str]:
    yield two_columns(rows(part, figures))


def _bandwidth(part: str, figures: Part) -> Iterator[str]:
    yield (
        "The product is PyTorch's, in float32, with all threads. A product that asks the memory ahead reads faster: "
        "the compiled products of this service do, and those of llama.cpp."
    )
    yield from _plain(part, figures)


CARD_TITLES = {
    "bandwidth": "the bandwidth of its memory",
    "graphs": "decode steps, called and recorded",
    "steps": "decode steps of steered and watched rows beside plain ones",
    "engine": "the running batch without HTTP",
    "http": "requests at once, called and recorded",
    "steered": "32 requests, steered beside plain",
    "wide-sae": "an SAE of real size",
    "seeds": "requests with seeds in shared passes",
    "precisions": "requests at once with quantized weights",
    "memory": "memory predicted and taken",
    "swaps": "two models that take turns",
}

REAL_TITLES = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct",
    "gemma-3-270m": "Gemma 3 270M",
}

SECTIONS: Mapping[str, tuple[str, Callable[[str, Part], Iterator[str]]]] = {
    **{f"real-{model}": (title, _real) for model, title in REAL_TITLES.items()},
    **{
        f"real-{model}-steered": (f"{title}, steered and watched", _real_steered)
        for model, title in REAL_TITLES.items()
    },
    "bandwidth": ("The bandwidth of the memory", _bandwidth),
    "concurrency-91m": ("Requests at once, 91M", _concurrency),
    "concurrency-0.5b": ("Requests at once, 0.5B", _concurrency),
    "long-prompts": ("Short requests beside long prompts", _long_prompts),
    "steered": ("Steering, sensing and monitoring in a shared batch", _steered),
    "kept-beginnings": ("The first token where the beginning is kept, 91M", _kept_beginnings),
    "few-shot": ("An evaluation after the same examples, 91M", _few_shot),
    "lm-eval": ("lm-evaluation-harness over HTTP and in process, 91M", _lm_eval),
    "neighbours": ("Beside a busy process", _neighbours),
    "beside-batch": ("Live requests beside a running batch, 91M", _beside_batch),
    "beside-jobs": ("Live streams beside jobs that read texts, the demo model", _beside_jobs),
    "beside-corpus-whole": (
        "A whole corpus beside live streams, the demo model",
        _beside_corpus,
    ),
    "mixed": ("Requests of different lengths", _plain),
    "token-costs": ("What a token costs outside the model, 91M", _plain),
    "step-times": ("Where the time of a decode step goes, 91M", _step_times),
    "step-watched": ("What watching adds to a decode step, 91M", _step_watched),
    "step-reading": ("Decode steps beside a long prompt, 91M", _step_reading),
    "step-edits": ("What edits add to a decode step, 91M", _step_edits),
    "engine": ("The running batch without HTTP, 0.5B", _plain),
    "service": ("What the service adds to the engine", _plain),
    "inference": ("Scoring, masks, second turns, 0.5B", _plain),
    "saes": ("What SAEs cost in a step, 0.5B", _plain),
    "sensing": ("What sensing costs in a step, 0.5B", _plain),
    "replicas-scaling": ("Throughput against the number of replicas", replica_sections.scaling),
    "replicas-latency": ("What a fleet adds to a token", replica_sections.latency),
    "replicas-steering": (
        "A change of the steering against the number of replicas",
        replica_sections.steering,
    ),
    "replicas-limit": ("The limit of the control plane", replica_sections.limit),
    "replicas-many": ("Many replicas behind one control plane", _plain),
    "replicas-streams": ("Streams that are open at once", _plain),
    "replicas-files": ("More streams than the service may open files", _plain),
    "replicas-requests": ("Short requests to the control plane", _plain),
    "replicas-live": ("Clients of live events", _plain),
    "replicas-epochs": ("Changes of the steering per second", _plain),
    "card-corpus": ("On a card: live streams beside a corpus, the demo model", _plain),
} | {
    f"card-{part}-{size}": (f"On a card: {title}, {size.upper()}", _plain)
    for size in tables.CARD_SIZES
    for part, title in CARD_TITLES.items()
}
"""The order of the page."""


# ---------------------------------------------------------------- words


def _ratio(values: Mapping[str, float] | None) -> str:
    return spread(values) if values else ""


def _line(text: str) -> str:
    """A text of several lines as one short line."""
    return " ".join(text.split())[:200]


def _plot(part: str) -> str:
    return f"![{DRAWN[part][1]}](performance/{part}.png)"


# ---------------------------------------------------------------- plots


def drawn(parts: Mapping[str, Measured], folder: Path = PLOTS) -> None:
    """Draw the plots whose figures have changed."""
    for part in DRAWN:
        if part in parts and not is_fresh(part, parts[part], folder):
            plots = import_module("benchmarks.plots")
            figure = getattr(plots, DRAWN[part][0])(parts[part].figures)
            plots.written(figure, parts[part].digest, folder / f"{part}.png")


def is_fresh(part: str, one: Measured, folder: Path = PLOTS) -> bool:
    """Whether the plot is drawn from these figures."""
    file = folder / f"{part}.png"
    return file.is_file() and one.digest.encode() in file.read_bytes()


def main() -> None:
    parts = measured()
    drawn(parts)
    for page, renew in ((PAGE, renewed), (HISTORY, renewed_history)):
        page.write_text(renew(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
