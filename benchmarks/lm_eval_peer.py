"""lm-evaluation-harness with three models: `python -m benchmarks.lm_eval_peer CHECKPOINT TOKENIZER URL`.

The program runs in an environment that has the harness. Each line of its standard input is a JSON object with a model,
a task and its folder, and is answered by a line with the seconds that the harness waited for answers of the model, the
median of the tokens of a prompt, and the answers. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from benchmarks.evaluations import BATCH, HTTP, TRANSFORMERS
from steerserve.evals import sweep
from steerserve.evals.lm_eval_model import SteerserveLM

METHODS = ("loglikelihood", "generate_until")


class Clock:
    """The seconds in calls of a model, and what it was asked."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.prompts: list[str] = []

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(requests: Any, **named: Any) -> Any:
            since = time.perf_counter()
            answers = call(requests, **named)
            self.seconds += time.perf_counter() - since
            self.prompts += [
                "".join(one.args[:2]) if isinstance(one.args[1], str) else one.args[0]
                for one in requests
            ]
            return answers

        return timed


def evaluated(lm: Any, of: Mapping[str, str]) -> tuple[Clock, list[Any]]:
    """The answers of a model, in the order of the questions, and the time in its calls."""
    clock = Clock()
    for name in METHODS:
        setattr(lm, name, clock.around(getattr(type(lm), name).__get__(lm)))
    told = simple_evaluate(
        model=lm,
        tasks=[of["task"]],
        task_manager=TaskManager(include_path=of["folder"], include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(told["samples"][of["task"]], key=lambda sample: sample["doc_id"])
    return clock, [one[0] for sample in samples for one in sample["resps"]]


def in_a_batch(url: str, tokenizer: str, of: Mapping[str, str]) -> tuple[Clock, list[Any]]:
    """The same for requests that are lines of a batch, with the time until the batch has answered."""
    lm = sweep.Rehearsed(base_url=url, tokenizer=tokenizer)
    evaluated(lm, of)
    lines = sweep.batch_lines(lm.asked.values(), [{}])
    since = time.perf_counter()
    _, bodies = sweep.batch_answers(url, lines, lambda _: None)
    seconds = time.perf_counter() - since
    lm.answers = {key: bodies[f"0-{place}"] for place, key in enumerate(lm.asked)}
    clock, answers = evaluated(lm, of)
    clock.seconds = seconds
    return clock, answers


def main() -> None:
    checkpoint, tokenizer, url = sys.argv[1:4]
    # what the harness prints is no answer
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ours = SteerserveLM(base_url=url, tokenizer=tokenizer)
    reader = AutoTokenizer.from_pretrained(tokenizer)
    theirs = HFLM(
        checkpoint, tokenizer=reader, device="cuda" if torch.cuda.is_available() else "cpu"
    )
    models = {
        HTTP: partial(evaluated, ours),
        TRANSFORMERS: partial(evaluated, theirs),
        BATCH: partial(in_a_batch, url, tokenizer),
    }
    for line in sys.stdin:
        of = json.loads(line)
        clock, answers = models[of["model"]](of)
        sizes = [len(reader(prompt).input_ids) for prompt in clock.prompts]
        answer = {
            "seconds": clock.seconds,
            "prompt_tokens": int(statistics.median(sizes)),
            "answers": answers,
        }
        print(json.dumps(answer), file=told, flush=True)


if __name__ == "__main__":
    main()
