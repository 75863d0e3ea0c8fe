"""Measures real models through HTTP, beside llama.cpp and transformers: `python -m benchmarks.real`.

The models are those of `tools.real`. Prompts are passages of the Brown corpus, and every answer is greedy and streamed.
llama.cpp gets the same weights in BF16 and Q8_0. The servers take turns, and those that are not measured are stopped. A
second part of each model compares steered and watched requests with plain ones.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Tokenizer
from tools.real import packages, text
from tools.real.models import MODELS, RealModel

from benchmarks import gguf_files, loads, runs, saes, servers, service, steered
from benchmarks.loads import Load
from benchmarks.machine import Spread, quantile
from benchmarks.plans import CACHE, Plan
from benchmarks.servers import BF16, CONTINUOUS, COUNTED, OURS, Q8_0, Server
from benchmarks.steered import Steered
from benchmarks.streams import Answer, Unanswered, at_once

LEVELS = {1: 4, 8: 2, 32: 1}
"""Requests at once, and how often they are sent in a round."""
QUICK = {1: 1, 8: 1}
"""The same for a quick run."""
ROWS = max(LEVELS)
PROMPT_TOKENS = 40
OURS_Q8 = f"{OURS} Q8"
RATIOS = {
    "bf16 over llama.cpp BF16": (OURS, BF16),
    "Q8 over llama.cpp Q8_0": (OURS_Q8, Q8_0),
    "bf16 over transformers": (OURS, CONTINUOUS),
}
KINDS = ("32 sae_steering", "8 edits each", "a sensed cluster", "monitoring")
SHAPE = 4608
"""Features of the SAE, where none is named."""
SAME_TEXTS, SAME_TOKENS = 16, 24
"""How many answers of how many tokens are compared between the servers of a ratio."""
BEGINNING, SAME_SHARE = 4, 0.3
"""A peer has other weights or another tokenizer where fewer than this share of the answers begin with the same so many
characters. Whole answers say less: llama.cpp rounds activations to 8 bits where the weights have 8."""
CUT_SECONDS = 60.0
PART_SECONDS, MOST_SECONDS = 7200.0, 3600.0
GREEDY = {"temperature": 0, **COUNTED}
IS_SLOW_IN_BFLOAT16 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "DEFAULT")
TRANSFORMERS = ("--dtype", "float32") if IS_SLOW_IN_BFLOAT16 else ()
"""PyTorch has no fast products of bfloat16 for processors without AVX-512: SmolLM2 writes one token a second there."""
ENDLESS = {"generation_config": json.dumps({"do_sample": False, "eos_token_id": -1})}
"""What transformers needs to go on after the end of a text, as llama.cpp does."""


def passages(checkpoint: Path) -> Iterator[str]:
    """Passages of natural text with PROMPT_TOKENS tokens each, in a fixed order, without an end."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    lines = [line for sample in text.samples().values() for line in sample.splitlines()]
    random.Random(0).shuffle(lines)
    while True:
        for line in lines:
            offsets = tokenizer.encode(line, add_special_tokens=False).offsets
            if len(offsets) >= PROMPT_TOKENS:
                yield line[: offsets[PROMPT_TOKENS - 1][1]]


@dataclass(slots=True)
class Contender:
    """A server, what was measured of it at each number of requests by the number of the batch of prompts, and why it is
    measured no more."""

    name: str
    server: Server
    loads: dict[int, dict[int, Load]] = field(default_factory=dict)
    failed: str | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the server gets only the first batch of each round."""
        return self.name == CONTINUOUS


def _tokens(plan: Plan) -> int:
    """The tokens of each answer."""
    return 12 if plan.is_quick else plan.tokens


def _levels(plan: Plan) -> Mapping[int, int]:
    return QUICK if plan.is_quick else LEVELS


def _ratios(ours: Contender, peer: Contender) -> dict[str, Any]:
    """The ratios of both figures at each number of requests, each of answers to the same prompts."""
    batches = {
        count: sorted(made.keys() & peer.loads.get(count, {}).keys())
        for count, made in ours.loads.items()
    }
    pairs = {
        str(count): [(ours.loads[count][batch], peer.loads[count][batch]) for batch in found]
        for count, found in batches.items()
    }
    return {
        "tokens_per_s": _over(pairs, lambda load: load.tokens_per_s),
        "first_token_s": _over(pairs, lambda load: median(load.first_token or [0.0])),
    }


def _over(
    pairs: Mapping[str, Sequence[tuple[Load, Load]]], figure: Callable[[Load], float]
) -> dict[str, Any]:
    return loads.ratios(
        {
            count: ([figure(ours) for ours, _ in found], [figure(peer) for _, peer in found])
            for count, found in pairs.items()
        }
    )


# ---------------------------------------------------------------- beside peers


async def beside_peers(plan: Plan, real: RealModel) -> dict[str, Any]:
    """Figures of every server at each number of requests, and ratios, each of requests with the same prompts."""
    async with AsyncExitStack() as opened:
        left_out: dict[str, str] = {}
        prompts = passages(real.checkpoint)
        levels = _levels(plan)
        contenders = await _contenders(plan, real, opened, left_out)
        plan.say("  comparing the texts of all servers")
        same = await _sameness(contenders, list(islice(prompts, SAME_TEXTS)), left_out)
        for count in levels:
            await _all(plan, contenders, list(islice(prompts, count)), 4, None)
        for turn in plan.turns(MOST_SECONDS):
            for count, times in levels.items():
                for repeat in range(times):
                    asked = list(islice(prompts, count))
                    await _all(plan, contenders, asked, _tokens(plan), turn * times + repeat)
    by_name = {c.name: c for c in contenders}
    return {
        "title": real.title,
        "tokens": _tokens(plan),
        "prompt_tokens": PROMPT_TOKENS,
        "cells": {
            c.name: {str(n): _cell(list(made.values())) for n, made in c.loads.items()}
            for c in contenders
        },
        "ratios": {
            name: _ratios(by_name[ours], by_name[peer])
            for name, (ours, peer) in RATIOS.items()
            if ours in by_name and peer in by_name
        },
        "same_texts": same,
        "peers": {
            c.name: servers.described(c.name, ROWS, TRANSFORMERS)
            for c in contenders
            if c.name in plan.peers
        },
        "left_out": left_out | {c.name: c.failed for c in contenders if c.failed},
    }


async def _contenders(
    plan: Plan, real: RealModel, opened: AsyncExitStack, left_out: dict[str, str]
) -> list[Contender]:
    """Start all servers. `left_out` gets the reason of each peer that cannot be had."""
    contenders = []
    for name, precision in ((OURS, "FP16"), (OURS_Q8, "Q8")):
        plan.say(f"  starting {name}")
        home = plan.scratch / f"{real.name}-{precision}"
        starting = servers.ours(home, real.checkpoint, precision, ROWS)
        server = await opened.enter_async_context(starting)
        server = replace(server, fields={"model": server.fields["model"], **GREEDY})
        await server.warm()
        contenders.append(Contender(name, server))
    if not plan.peers:
        return contenders
    plan.say("  installing the peers")
    try:
        python = servers.Peers(plan.cache).prepare()
    except (subprocess.CalledProcessError, OSError) as error:
        left_out |= dict.fromkeys(plan.peers, f"not installed: {error}")
        return contenders
    for name in plan.peers:
        plan.say(f"  starting {name}")
        try:
            server = await opened.enter_async_context(_peer(plan, name, python, real))
            if name == CONTINUOUS:
                server = replace(server, fields={**server.fields, **ENDLESS})
            await server.warm()
        except (servers.NotStarted, Unanswered, OSError, ValueError) as error:
            left_out[name] = f"not started: {error}"
        else:
            contenders.append(Contender(name, server))
    return contenders


def _peer(
    plan: Plan, name: str, python: Path, real: RealModel
) -> AbstractAsyncContextManager[Server]:
    log = plan.scratch / f"{real.name}-{name}.log"
    if name == CONTINUOUS:
        return servers.transformers(name, python, real.checkpoint, log, TRANSFORMERS)
    label = servers.GGUF_LABELS[name]
    file = plan.cache / f"{real.name}-{label}.gguf"
    gguf_files.written_like(real.gguf, real.checkpoint, label, file)
    return servers.llama(name, python, file, log, ROWS)


async def _sameness(
    contenders: list[Contender], prompts: Sequence[str], left_out: dict[str, str]
) -> dict[str, dict[str, float]]:
    """How far the greedy answers of ours and of llama.cpp are the same text. A peer with other texts is left out."""
    texts: dict[str, list[str]] = {}
    for contender in [c for c in contenders if not c.is_slow]:
        try:
            answers = [await _alone(contender.server, prompt) for prompt in prompts]
        except (Unanswered, OSError) as error:
            left_out[contender.name] = f"{type(error).__name__}: {error}"
            contenders.remove(contender)
        else:
            texts[contender.name] = [answer.text for answer in answers]
    found = {}
    for ours, peer in RATIOS.values():
        if peer in texts:
            pairs = list(zip(texts[ours], texts[peer], strict=True))
            shares = [_common(*pair) / max(map(len, pair)) for pair in pairs]
            begin_alike = sum(a[:BEGINNING] == b[:BEGINNING] for a, b in pairs)
            found[peer] = {
                "texts": len(pairs),
                "tokens": SAME_TOKENS,
                "equal": sum(a == b for a, b in pairs),
                "begin_alike": begin_alike,
                "median_share_of_the_same_beginning": median(shares),
            }
            if begin_alike < SAME_SHARE * len(pairs):
                left_out[peer] = f"other texts than {ours}: {pairs[0]}"
    contenders[:] = [c for c in contenders if c.name not in left_out]
    return found


async def _alone(server: Server, prompt: str) -> Answer:
    (answer,) = await at_once([server.request(prompt, SAME_TOKENS)], CUT_SECONDS)
    return answer


def _common(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def _all(
    plan: Plan, contenders: list[Contender], prompts: list[str], tokens: int, batch: int | None
) -> None:
    """Send the prompts at once to every server in turn. Without the number of a batch nothing is counted."""
    count = len(prompts)
    is_first = batch is None or batch % _levels(plan)[count] == 0
    taking_part = [c for c in contenders if c.failed is None and (is_first or not c.is_slow)]
    # the order changes from one batch of prompts to the next
    for contender in random.Random(prompts[0]).sample(taking_part, len(taking_part)):
        with ExitStack() as stack:
            for other in contenders:
                if other is not contender:
                    stack.enter_context(other.server.paused())
            requests = [contender.server.request(prompt, tokens) for prompt in prompts]
            try:
                load = await loads.measured(at_once(requests, CUT_SECONDS))
                if not load.is_whole:
                    await contender.server.warm()
            except (Unanswered, OSError) as error:
                contender.failed = f"{count} at once: {error or type(error).__name__}"
                plan.say(f"  {contender.name} failed, {contender.failed}")
                continue
        if batch is not None:
            contender.loads.setdefault(count, {})[batch] = load
            first = f"{median(load.first_token) * 1e3:.0f} ms" if load.first_token else "none"
            plan.say(
                f"  {count:2d} at once, batch {batch + 1}, {contender.name}: "
                f"{load.tokens_per_s:.1f} tokens/s, first token {first}"
                f"{'' if load.is_whole else ', cut'}"
            )


def _cell(measured: Sequence[Load]) -> dict[str, Any]:
    """Medians with the least and the greatest; of the first tokens, also the 95 % quantile of all answers."""
    first = [seconds for load in measured for seconds in load.first_token]
    return {
        "tokens_per_s": asdict(Spread.of(loads.speeds(measured))),
        "first_token_s": loads.quantiles([load.first_token for load in measured], {"p50": 0.5})
        | ({"p95": quantile(first, 0.95)} if first else {}),
        "answers": len(first),
        "rounds_cut": sum(not load.is_whole for load in measured),
        "client_share_of_a_core": round(max(load.client_share for load in measured), 3),
    }


# ---------------------------------------------------------------- steered beside plain


async def steered_beside_plain(plan: Plan, real: RealModel, sae: Path | None) -> dict[str, Any]:
    """Tokens per second of steered and watched requests, and their ratios to plain requests, pair by pair."""
    config = json.loads((real.checkpoint / "config.json").read_text())
    layer, width = config["num_hidden_layers"] // 2, config["hidden_size"]
    sae = sae or _trained(real)
    if sae is None:
        folder, d_sae = plan.scratch / f"{real.name}-sae", SHAPE
        hook = f"blocks.{layer}.hook_resid_post"
        path = saes.written(folder, width, hook, d_sae).path
    else:
        path, (layer, d_sae) = str(sae), _place(sae)
    prompts = passages(real.checkpoint)
    home = plan.scratch / f"{real.name}-steered"
    async with service.running(home, MAX_CONCURRENT_REQUESTS=str(ROWS)) as client:
        await service.load(client, real.checkpoint, real.name)
        server = replace(servers.served(client, real.name), fields={"model": real.name, **GREEDY})
        asked = Steered(client, server, lambda *_: (servers.COMPLETIONS, {"prompt": next(prompts)}))
        await asked.attach(path, layer, width, d_sae)
        levels = _levels(plan)
        kinds = {name: kind for name, kind in asked.kinds().items() if name in KINDS}
        for count in levels:
            for kind in (steered.PLAIN, *kinds.values()):
                await asked.load(kind, 4, count)
        pairs: dict[str, dict[str, list[steered.Pair]]] = {name: {} for name in kinds}
        for turn in plan.turns(MOST_SECONDS):
            for count in levels:
                for name, kind in kinds.items():
                    pair = await asked.pair(kind, _tokens(plan), count, is_first=bool(turn % 2))
                    pairs[name].setdefault(str(count), []).append(pair)
                    plan.say(
                        f"  round {turn + 1}, {count:2d} at once, {name}: "
                        f"{pair.load.tokens_per_s:.1f} tokens/s, plain {pair.plain.tokens_per_s:.1f}"
                    )
    names = {name: name.removeprefix("32 ") for name in kinds}
    return {
        "title": real.title,
        "tokens": _tokens(plan),
        "prompt_tokens": PROMPT_TOKENS,
        "sae": "of random weights" if sae is None else f"of trained weights ({sae.name})",
        "layer": layer,
        "d_sae": d_sae,
        "members": steered.MEMBERS,
        "top_k": steered.TOP_K,
        "edits": steered.EDITS,
        "cells": {
            names[name]: {n: _cell([pair.load for pair in made]) for n, made in of.items()}
            for name, of in pairs.items()
        },
        "ratios": {
            names[name]: loads.ratios({n: _speeds(made) for n, made in of.items()})
            for name, of in pairs.items()
        },
    }


def _trained(real: RealModel) -> Path | None:
    """The newest SAE of the model that `tools.real.train_sae` has made here."""
    found = packages.kept().glob(f"{real.name.split('-')[0]}-sae-*/cfg.json")
    newest = max(found, key=lambda file: file.stat().st_mtime, default=None)
    return None if newest is None else newest.parent


def _speeds(pairs: Sequence[steered.Pair]) -> tuple[list[float], list[float]]:
    return loads.speeds([p.load for p in pairs]), loads.speeds([p.plain for p in pairs])


def _place(sae: Path) -> tuple[int, int]:
    """The layer and the number of features of an SAE as SAELens saves it."""
    config = json.loads((sae / "cfg.json").read_text())
    hook = (config.get("metadata") or config)["hook_name"]
    found = re.search(r"\d+", hook)
    if found is None:
        raise ValueError(f"{hook} names no layer")
    return int(found[0]), config["d_sae"]


# ---------------------------------------------------------------- the run

PARTS = [f"real-{real.name}{end}" for real in MODELS for end in ("", "-steered")]


def main() -> None:
    parser = runs.options(__doc__, PARTS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of 1 and 8 at once, short answers, llama.cpp alone",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often; 3 by default")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the peers' files")
    parser.add_argument("--no-peers", action="store_true", help="measure this service alone")
    parser.add_argument(
        "--sae",
        type=_named_sae,
        action="append",
        default=[],
        metavar="MODEL=FOLDER",
        help=f"an SAE as SAELens saves it, in place of the one of tools/real/train_sae.py; models: {', '.join(real.name for real in MODELS)}",
    )
    given = parser.parse_args()
    peers = () if given.no_peers else (BF16, Q8_0, *[CONTINUOUS] * (not given.quick))
    given.cache.mkdir(parents=True, exist_ok=True)
    rounds = 1 if given.quick else given.rounds
    run = runs.Run("real", given.only, given.out, quick=given.quick, rounds=rounds)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(given.quick, rounds, peers, given.cache, Path(scratch), run.say)
        try:
            for part in given.only:
                run.measure(part, partial(_run, part, plan, dict(given.sae)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            run.say("interrupted")
            sys.exit(130)
        finally:
            status = run.end()
    sys.exit(status)


def _named_sae(named: str) -> tuple[str, Path]:
    model, _, folder = named.partition("=")
    return model, Path(folder)


def _run(part: str, plan: Plan, given_saes: Mapping[str, Path]) -> dict[str, Any]:
    real = next(one for one in MODELS if part.startswith(f"real-{one.name}"))
    if part.endswith("-steered"):
        work = steered_beside_plain(plan, real, given_saes.get(real.name))
    else:
        work = beside_peers(plan, real)
    return asyncio.run(runs.in_time(work, PART_SECONDS))


if __name__ == "__main__":
    main()
