"""Measures lm-evaluation-harness against this service, beside the same harness on transformers in its own process:
`python -m benchmarks.evaluations [--quick]`.

The harness is one process with three models: `steerserve` over HTTP, the same kind of requests as lines of a batch, and
`hf`. They answer the same tasks in turns. The service is stopped while transformers runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import loads, runs, servers
from benchmarks.environments import environment
from benchmarks.machine import Spread
from benchmarks.plans import CACHE, Plan
from steerserve import demo

PART = "lm-eval"
ROOT = Path(__file__).parents[1]
LIBRARIES = ("lm-eval[api]==0.4.13",)
HTTP, BATCH, TRANSFORMERS = "steerserve, over HTTP", "steerserve, a batch", "transformers"
SHOTS, CHOICES, WRITTEN = 5, 4, 32
"""The examples before each question, its choices, and the tokens of an answer that is written."""
QUESTIONS, QUICK_QUESTIONS = 8, 4
QUESTION_WORDS, CHOICE_WORDS = 14, 2
ANSWER_SECONDS = 600.0
MOST_SECONDS = 600.0
CLOSE = 0.5
"""The most by which the log-likelihood of a choice may differ between the two, in bfloat16."""
WORDS = "sea boat sail wind tree bird nest song road hill farm barn cake milk bread stone river light".split()


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the harness. With the sampler `first_n` all questions follow the same examples, as in MMLU; with
    `default` each has examples of its own, as in most tasks."""

    name: str
    about: str
    sampler: str
    is_written: bool = False
    has_letters: bool = False

    def write(self, folder: Path, questions: int, seed: str) -> None:
        """Write the task with questions that no other seed has."""
        folder.mkdir(parents=True)
        draw = random.Random(seed)
        files = {"test": folder / "test.json", "train": folder / "train.json"}
        for file, count in zip(files.values(), (questions, 4 * SHOTS), strict=True):
            file.write_text(json.dumps([self._question(draw) for _ in range(count)]))
        config = {
            "task": self.name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {name: str(file) for name, file in files.items()}},
            "test_split": "test",
            "fewshot_split": "train",
            "fewshot_config": {"sampler": self.sampler},
            "num_fewshot": SHOTS,
            "doc_to_text": "{{query}}",
            "target_delimiter": " ",
            **self._answers(),
        }
        # JSON is YAML
        (folder / "task.yaml").write_text(json.dumps(config))

    def _answers(self) -> dict[str, Any]:
        if self.is_written:
            return {
                "output_type": "generate_until",
                "doc_to_target": "{{choices[gold]}}",
                "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": WRITTEN},
                "metric_list": [{"metric": "exact_match"}],
            }
        return {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}],
        }

    def _question(self, draw: random.Random) -> dict[str, Any]:
        def words(count: int) -> str:
            return " ".join(draw.choices(WORDS, k=count))

        choices = [words(CHOICE_WORDS) for _ in range(CHOICES)]
        lines = [f"Question: {words(QUESTION_WORDS)}?"]
        if self.has_letters:
            letters = "ABCD"[:CHOICES]
            lines += [f"{letter}. {one}" for letter, one in zip(letters, choices, strict=True)]
            choices = list(letters)
        query = "\n".join([*lines, "Answer:"])
        return {"query": query, "choices": choices, "gold": draw.randrange(CHOICES)}


TASKS = (
    Task("choices", f"{CHOICES} choices, the same {SHOTS} examples before all", "first_n"),
    Task("drawn", f"{CHOICES} choices, {SHOTS} examples drawn for each question", "default"),
    Task(
        "letters",
        f"{CHOICES} choices of one letter, the same examples",
        "first_n",
        has_letters=True,
    ),
    Task(
        "written",
        f"written answers of {WRITTEN} tokens, examples drawn",
        "default",
        is_written=True,
    ),
    Task(
        "written-same", f"written answers of {WRITTEN} tokens, the same examples", "first_n", True
    ),
)


async def measure(plan: Plan) -> dict[str, Any]:
    """Requests per second of each in each task, and the ratios of ours to transformers, round by round."""
    folder = demo.MODEL_DIR if plan.is_quick else await asyncio.to_thread(_checkpoint, plan)
    questions = QUICK_QUESTIONS if plan.is_quick else QUESTIONS
    python = await asyncio.to_thread(environment, plan.cache / "lm-eval", LIBRARIES)
    scratch = plan.scratch / "evaluations"
    tokenizer = _tokenizer(folder, scratch / "tokenizer")
    rates: dict[str, dict[str, list[float]]] = {
        task.name: {name: [] for name in (HTTP, BATCH, TRANSFORMERS)} for task in TASKS
    }
    sizes: dict[str, dict[str, int]] = {}
    async with (
        servers.ours(scratch / "home", folder) as server,
        _harness(python, [str(folder), str(tokenizer), server.url], scratch) as harness,
    ):
        await server.warm()
        for turn in plan.turns(MOST_SECONDS):
            for task in TASKS:
                # neither the batch nor another round has these questions, so nothing of them is kept
                alone, batched = scratch / f"{task.name}-{turn}", scratch / f"{task.name}-{turn}-b"
                task.write(alone, questions, alone.name)
                task.write(batched, questions, batched.name)
                over_http = await harness.ask(HTTP, task, alone)
                with server.paused():
                    in_process = await harness.ask(TRANSFORMERS, task, alone)
                in_batch = await harness.ask(BATCH, task, batched)
                _check_alike(task, over_http.answers, in_process.answers)
                # the service has kept the beginnings of these now, and answers the same
                assert (await harness.ask(HTTP, task, batched)).answers == in_batch.answers
                for name, ran in ((HTTP, over_http), (BATCH, in_batch), (TRANSFORMERS, in_process)):
                    rates[task.name][name].append(len(ran.answers) / ran.seconds)
                sizes[task.name] = {
                    "requests": len(over_http.answers),
                    "prompt_tokens": over_http.prompt_tokens,
                }
                told = ", ".join(f"{name}: {of[-1]:.1f}/s" for name, of in rates[task.name].items())
                plan.say(f"  round {turn + 1}, {task.about}: {told}")
    return {
        "model": folder.name,
        "dtype": json.loads((folder / "config.json").read_text())["dtype"],
        "questions": questions,
        "shots": SHOTS,
        "harness": LIBRARIES[0],
        "slots": servers.ROWS,
        "aimed_at": HTTP,
        "tasks": {
            task.name: {
                "about": task.about,
                **sizes[task.name],
                "per_s": {name: asdict(Spread.of(of)) for name, of in rates[task.name].items()},
                "ratios": loads.ratios(
                    {
                        name: (rates[task.name][name], rates[task.name][TRANSFORMERS])
                        for name in (HTTP, BATCH)
                    }
                ),
            }
            for task in TASKS
        },
    }


def _checkpoint(plan: Plan) -> Path:
    """The 91M shape; in float32 where the processor has no kernels for bfloat16, which makes both far slower."""
    made = plan.checkpoint("91m")
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return made
    folder = plan.cache / "91m-float32"
    if not (folder / "config.json").is_file():
        AutoTokenizer.from_pretrained(made).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
        model.save_pretrained(folder)
    return folder


def _tokenizer(model: Path, folder: Path) -> Path:
    """The tokenizer of the model, with a token that ends a text: the harness needs one to run transformers."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True, slots=True)
class Ran:
    """What the harness did with one task. `prompt_tokens` is the median of its prompts with their continuations."""

    seconds: float
    prompt_tokens: int
    answers: list[Any]


@dataclass(frozen=True, slots=True)
class Harness:
    """The running harness."""

    process: asyncio.subprocess.Process
    log: Path

    async def ask(self, model: str, task: Task, folder: Path) -> Ran:
        """Have a model answer a task.

        Raises:
            servers.NotStarted: the harness ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        wanted = {"model": model, "task": task.name, "folder": str(folder)}
        self.process.stdin.write(json.dumps(wanted).encode() + b"\n")
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await self.process.stdout.readline()
        if not line:
            raise servers.NotStarted(self.log.read_text(errors="replace")[-1500:])
        return Ran(**json.loads(line))


@asynccontextmanager
async def _harness(python: Path, words: Sequence[str], folder: Path) -> AsyncIterator[Harness]:
    """The harness as a process of its own."""
    own = {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    log = folder / "harness.log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            str(python),
            "-m",
            "benchmarks.lm_eval_peer",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=written,
            env=os.environ | own,
            limit=1 << 26,
        )
    try:
        yield Harness(process, log)
    finally:
        await servers.ended(process, process.send_signal)


def _check_alike(task: Task, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Both have answered the same questions alike. Written answers part where two tokens are nearly as probable."""
    assert len(ours) == len(theirs)
    if task.is_written:
        same = sum(one[:8] == other[:8] for one, other in zip(ours, theirs, strict=True))
        assert 2 * same >= len(ours), f"{same} of {len(ours)} written answers begin alike"
        return
    worst = max(abs(one[0] - other[0]) for one, other in zip(ours, theirs, strict=True))
    assert worst < CLOSE, f"a log-likelihood differs by {worst:.3f}"


def main() -> None:
    parser = runs.options(__doc__, [PART])
    parser.add_argument("--quick", action="store_true", help="the demo model, few questions, once")
    parser.add_argument("--rounds", type=int, default=3, help="how often; 3 by default")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of models and peers")
    given = parser.parse_args()
    rounds = 1 if given.quick else given.rounds
    run = runs.Run(PART, [PART], given.out, quick=given.quick, rounds=rounds)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(given.quick, rounds, (), given.cache, Path(scratch), run.say)
        try:
            run.measure(PART, lambda: asyncio.run(measure(plan)))
        except KeyboardInterrupt:
            run.say("interrupted")
            sys.exit(130)
        finally:
            status = run.end()
    sys.exit(status)


if __name__ == "__main__":
    main()
