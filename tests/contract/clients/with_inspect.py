"""The calls of inspect-ai: small evaluations of the models `openai-api/local/<model>` and `openai/<model>`.

The provider `openai` uses the responses API for a model that it does not know, unless `-M responses_api=false` tells it not to.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from urllib.request import urlopen

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import BatchConfig, GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from pages import run
from told import BASE_URL, MODEL, REFERENCE, STORY, Calls

calls = Calls("inspect_ai", "openai")
NAME = f"openai-api/local/{MODEL}"
OPENAI = f"openai/{MODEL}"
os.environ |= {"LOCAL_BASE_URL": BASE_URL, "LOCAL_API_KEY": "any"}
os.environ |= {"OPENAI_BASE_URL": BASE_URL, "OPENAI_API_KEY": "any"}


def evaluated(name: str = NAME, **fields: Any) -> EvalLog:
    samples = [Sample(input=STORY, target="e"), Sample(input="The sea?", target="e")]
    task = Task(dataset=samples, solver=generate(), scorer=includes())
    (log,) = eval(task, model=name, max_tokens=8, seed=7, log_dir="logs", display="none", **fields)
    assert log.status == "success", log.error
    return log


@calls.works("an evaluation of `openai-api/local/<model>` with `generate` and a seed")
def evaluate() -> None:
    log = evaluated()
    assert log.stats.model_usage[NAME].output_tokens == 16
    assert log.results is not None
    assert "accuracy" in log.results.scores[0].metrics


@calls.works("the same with `stream=true`")
def stream() -> None:
    assert evaluated(model_args={"stream": True}).stats.model_usage[NAME].output_tokens == 16


@calls.works("`logprobs` with `max_tokens=1`, with the log-probabilities of transformers")
def logprobs() -> None:
    config = GenerateConfig(logprobs=True, top_logprobs=2, max_tokens=1)
    answer = asyncio.run(get_model(NAME, config=config).generate(STORY))
    assert answer.choices[0].logprobs is not None
    (token,) = answer.choices[0].logprobs.content
    assert len(token.top_logprobs) == 2
    for one in token.top_logprobs:
        assert abs(one.logprob - REFERENCE["chat"][STORY][one.token]) < 0.2


@calls.works("an evaluation of `openai/<model>` with `-M responses_api=false`")
def openai() -> None:
    log = evaluated(OPENAI, model_args={"responses_api": False})
    assert log.stats.model_usage[OPENAI].output_tokens == 16


@calls.works("an evaluation of `openai/<model>` as it is: it calls the responses API")
def responses() -> None:
    log = evaluated(OPENAI)
    assert log.stats.model_usage[OPENAI].output_tokens == 16


@calls.works("an evaluation of `openai/<model>` with `batch`, which calls the Batch API")
def batch() -> None:
    config = BatchConfig(send_delay=0.2, tick=0.2)
    log = evaluated(OPENAI, batch=config)
    assert log.stats.model_usage[OPENAI].output_tokens == 16
    with urlopen(f"{BASE_URL}/batches") as listed:
        told = json.load(listed)["data"][0]
    assert told["request_counts"]["completed"] == 2


@calls.works(
    "twenty evaluations at once, each with other `interventions` in its `extra_body` ([the recipe](recipes/inspect-ai.md))"
)
def strengths() -> None:
    shares = run("inspect-ai.md", BASE_URL.removesuffix("/v1"))["accuracies"]
    assert len(shares) == 20
    assert max(shares[0], shares[4]) < max(shares.values())


calls.tell()
