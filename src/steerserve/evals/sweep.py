"""One task of lm-evaluation-harness at several strengths of steering, in one batch, as a table and a plot.

The harness runs once to say what it asks, and once for each strength to score the answers. What it asks does not depend
on the strength, so the requests of all strengths are lines of one batch.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from steerserve.client import ServiceUnreachable
from steerserve.evals.intervals import interval
from steerserve.evals.lm_eval_model import SteerserveLM
from steerserve.evals.plot import drawn
from steerserve.evals.steering import api_key, base_url, try_fields

BOOTSTRAPS = 1000
FIRST_POLL_SECONDS, POLL_SECONDS = 0.05, 1.0
"""The pause before the first question after a batch, and the longest one; each is twice the one before."""
OVER = ("completed", "failed", "expired", "cancelled")

Edits = Callable[[float], Mapping[str, object]]
"""The fields of a request at a strength."""


@dataclass(frozen=True, slots=True)
class Point:
    """The score at a strength, with the bounds of its interval of 95 %; None where the harness gives no error."""

    strength: float
    score: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """The scores of a task over the strengths."""

    task: str
    metric: str
    model: str
    batch_id: str
    points: tuple[Point, ...]

    def table(self) -> str:
        """The curve as a table in Markdown."""
        lines = [f"| strength | {self.metric} | interval of 95 % |", "|---|---|---|"]
        for point in self.points:
            bounds = "" if point.low is None else f"{point.low:.4f} to {point.high:.4f}"
            lines.append(f"| {point.strength:g} | {point.score:.4f} | {bounds} |")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write the curve as a table, as JSON and as a plot; the paths of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "sweep.md": self.table(),
            "sweep.json": json.dumps(asdict(self), indent=1) + "\n",
            "sweep.svg": drawn(
                f"{self.task} of {self.model}",
                self.metric,
                [(one.strength, one.score, one.low, one.high) for one in self.points],
            ),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return [folder / name for name in texts]


class Rehearsed(SteerserveLM):
    """A model that notes what it is asked, and answers from what a batch has answered."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(num_concurrent=1, **arguments)
        self.asked: dict[str, tuple[dict[str, Any], bool]] = {}
        self.answers: Mapping[str, object] | None = None

    def model_call(
        self,
        messages: Sequence[object],
        *,
        generate: bool = True,
        gen_kwargs: object = None,
        **others: Any,
    ) -> Any:
        payload = self._create_payload(
            self.create_message(messages),
            generate=generate,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=self._seed,
            eos=self.eos_string,
            **others,
        )
        key = json.dumps(payload, sort_keys=True)
        if self.answers is not None:
            return self.answers[key]
        self.asked.setdefault(key, (payload, generate))
        return _placeholder(messages, generate)


def _placeholder(messages: Any, generate: bool) -> dict[str, object]:
    """An answer in the form of a real one, whose content does not matter."""
    if generate:
        return {"choices": [{"index": i, "text": ""} for i in range(len(messages))]}
    choices = []
    for i, tokens in enumerate(messages):
        count = len(tokens) + 1
        scores = {"token_logprobs": [0.0] * count, "top_logprobs": [{"": 0.0}] * count}
        choices.append({"index": i, "logprobs": scores})
    return {"choices": choices}


def sweep(
    task: str,
    strengths: Sequence[float],
    edits: Edits,
    *,
    model: str | None = None,
    url: str | None = None,
    tokenizer: str | None = None,
    limit: int | None = None,
    include_path: str | None = None,
    metric: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Curve:
    """The curve of a task. `edits` gives the fields of a request at each of the strengths.

    Raises:
        ValueError: no such model, task or metric; the service refuses an edit; the batch failed, or lines of it did.
        steerserve.ServiceError: the service does not answer.
        KeyboardInterrupt: the batch is cancelled then.
    """
    lm = Rehearsed(model=model, base_url=url, tokenizer=tokenizer)
    for strength in strengths:
        try_fields(base_url(url), lm.model, edits(strength))
    manager = TaskManager(include_path=include_path)
    if task not in manager.all_tasks:
        raise ValueError(
            f"the harness has no task {task!r}; `--include-path` adds a folder of tasks"
        )

    def scored() -> tuple[dict[str, object], int]:
        """The scores of the task, and the number of its documents."""
        told = simple_evaluate(
            model=lm,
            tasks=[task],
            task_manager=manager,
            limit=limit,
            bootstrap_iters=BOOTSTRAPS,
        )
        results: dict[str, Any] = told["results"]
        if task not in results:
            raise ValueError(f"{task}: name one task, not a group of them")
        found: dict[str, Any] = results[task]
        return found, int(told["n-samples"][task]["effective"])

    scored()
    lines = batch_lines(lm.asked.values(), [edits(strength) for strength in strengths])
    say(f"{len(lines)} lines in one batch: {len(lm.asked)} requests at {len(strengths)} strengths")
    batch_id, bodies = batch_answers(base_url(url), lines, say)
    points = []
    for at, strength in enumerate(strengths):
        lm.answers = {key: bodies[f"{at}-{place}"] for place, key in enumerate(lm.asked)}
        found, documents = scored()
        metric = _metric(found, metric)
        points.append(_point(strength, found, metric, documents))
    return Curve(task, metric or "", lm.model, batch_id, tuple(points))


def batch_lines(
    asked: Iterable[tuple[dict[str, Any], bool]], steering: Iterable[Mapping[str, object]]
) -> list[dict[str, Any]]:
    """The lines of a batch: each request with each steering. The custom id is the place of the steering, a hyphen and
    the place of the request. Prompts that begin alike follow each other, so that what they begin with is read once."""
    placed = sorted(enumerate(asked), key=lambda one: one[1][0]["prompt"])
    return [
        {
            "custom_id": f"{at}-{place}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {**payload, **fields, **({} if is_generated else {"score_steered": True})},
        }
        for at, fields in enumerate(steering)
        for place, (payload, is_generated) in placed
    ]


def batch_answers(
    url: str, lines: Sequence[Mapping[str, object]], say: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    """Run a batch; its id, and the bodies of its answers by their custom ids.

    Raises:
        ValueError: the batch did not complete, or a line was refused.
        steerserve.ServiceError: the service does not answer.
        KeyboardInterrupt: the batch is cancelled then.
    """
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    headers = {"Authorization": f"Bearer {api_key()}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=600) as http:

        def asked(method: str, path: str, **sent: Any) -> httpx2.Response:
            try:
                answer = http.request(method, path, **sent)
            except httpx2.RequestError as error:
                why = str(error) or type(error).__name__
                raise ServiceUnreachable(f"the service at {url} does not answer: {why}") from None
            if answer.status_code >= 400:
                raise ValueError(answer.json()["error"]["message"])
            return answer

        sent = {"file": ("sweep.jsonl", content)}
        file = asked("POST", "/v1/files", files=sent, data={"purpose": "batch"}).json()
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        batch = asked("POST", "/v1/batches", json=body).json()
        done, pause = 0, FIRST_POLL_SECONDS
        try:
            while batch["status"] not in OVER:
                time.sleep(pause)
                pause = min(2 * pause, POLL_SECONDS)
                batch = asked("GET", f"/v1/batches/{batch['id']}").json()
                counts = batch["request_counts"]
                if counts["completed"] != done:
                    done = counts["completed"]
                    say(f"{done} of {counts['total']} lines are answered")
        except KeyboardInterrupt:
            with suppress(ValueError):  # the batch has just ended
                asked("POST", f"/v1/batches/{batch['id']}/cancel")
                say(f"the batch {batch['id']} is cancelled")
            raise
        if batch["status"] != "completed":
            faults = (batch["errors"] or {"data": [{"message": ""}]})["data"]
            raise ValueError(f"the batch is {batch['status']}: {faults[0]['message']}")
        if batch["error_file_id"] is not None:
            failed = asked("GET", f"/v1/files/{batch['error_file_id']}/content").text
            first = json.loads(failed.splitlines()[0])["response"]["body"]["error"]
            count = batch["request_counts"]["failed"]
            raise ValueError(f"{count} lines were refused; the first: {first['message']}")
        text = asked("GET", f"/v1/files/{batch['output_file_id']}/content").text
    read = map(json.loads, text.splitlines())
    return batch["id"], {line["custom_id"]: line["response"]["body"] for line in read}


def _metric(found: Mapping[str, object], wanted: str | None) -> str:
    """The name of the metric that is told: the wanted one, or the first.

    Raises:
        ValueError: the task has no such metric.
    """
    names = [
        name.partition(",")[0]
        for name, value in found.items()
        if isinstance(value, int | float) and "," in name and "_stderr," not in name
    ]
    if not names or wanted not in (None, *names):
        raise ValueError(f"metric: the task has {', '.join(names) or 'no number'}")
    return wanted or names[0]


def _point(strength: float, found: Mapping[str, Any], metric: str, documents: int) -> Point:
    name = next(name for name in found if name.partition(",")[0] == metric)
    kind = name.partition(",")[2]
    score, error = float(found[name]), found.get(f"{metric}_stderr,{kind}")
    if not isinstance(error, int | float):
        return Point(strength, score, None, None)
    return Point(strength, score, *interval(score, error, documents))
