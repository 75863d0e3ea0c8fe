"""The calls of lm-evaluation-harness: it scores texts by `echo` with `logprobs`, and its numbers are those of transformers.

The harness sends prompts as token ids, with the token that begins every text, and the service adds no second one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from pages import run
from told import BASE_URL, MODEL, REFERENCE, TOKENIZER, Calls

NEAR = 0.3
"""How far two sums of log-probabilities may be apart, because both are computed in half precision."""

calls = Calls("lm_eval")
logging.disable(logging.WARNING)
for name in ("stories.yaml", "stories.json"):
    shutil.copy(Path(__file__).parent / name, name)


def model(**fields: Any) -> LocalCompletionsAPI:
    return LocalCompletionsAPI(
        base_url=f"{BASE_URL}/completions",
        model=MODEL,
        tokenizer_backend="huggingface",
        tokenizer=TOKENIZER,
        max_length=1000,
        max_retries=1,
        **{"add_bos_token": True, **fields},
    )


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def check(found: Sequence[float], expected: Sequence[float]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) < NEAR, (one, other)


@calls.works(
    "a `multiple_choice` task of `local-completions`, with the log-likelihoods of transformers: `tokenizer_backend=huggingface`, "
    "and for a tokenizer with a BOS token `add_bos_token=True`"
)
def multiple_choice() -> None:
    told = simple_evaluate(
        model=model(),
        tasks=["stories"],
        task_manager=TaskManager(include_path=".", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(told["samples"]["stories"], key=lambda sample: sample["doc_id"])
    stories = json.loads(Path("stories.json").read_text())
    right = 0
    for sample, story, expected in zip(samples, stories, REFERENCE["stories"], strict=True):
        found = [float(response[0][0]) for response in sample["resps"]]
        check(found, expected)
        right += expected.index(max(expected)) == story["gold"]
    assert told["results"]["stories"]["acc,none"] == right / len(stories)


@calls.works("several requests in one body (`batch_size=4`) and at once (`num_concurrent=3`)")
def together() -> None:
    stories = json.loads(Path("stories.json").read_text())
    pairs = [(one["query"], f" {choice}") for one in stories for choice in one["choices"]]
    expected = [value for values in REFERENCE["stories"] for value in values]
    for fields in ({"batch_size": 4}, {"num_concurrent": 3}):
        asked = [instance("loglikelihood", *pair) for pair in pairs]
        check([value for value, _ in model(**fields).loglikelihood(asked)], expected)


@calls.works(
    "`loglikelihood_rolling` (perplexities), with the numbers of transformers; here the harness puts the BOS token before "
    "the text itself, so `add_bos_token` stays `False`"
)
def rolling() -> None:
    texts = REFERENCE["texts"]
    asked = [instance("loglikelihood_rolling", text) for text in texts]
    scored = model(add_bos_token=False).loglikelihood_rolling(asked)
    check(scored, list(texts.values()))


@calls.works("`generate_until` with a stop string")
def generate() -> None:
    asked = [instance("generate_until", "One day", {"until": ["."], "max_gen_toks": 30})]
    (text,) = model().generate_until(asked)
    assert text
    assert "." not in text


@calls.works(
    "log-likelihoods under a profile, as [the recipe](recipes/lm-eval.md) asks for them: `model@profile`"
)
def steered() -> None:
    os.environ["TOKENIZER"] = TOKENIZER
    page = run("lm-eval.md", BASE_URL.removesuffix("/v1"))
    assert page["plain"] < page["steered"] == 1


calls.tell()
