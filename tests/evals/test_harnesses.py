"""lm-evaluation-harness and inspect-ai against a running service, each where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running

EDITS = {"edits": [{"op": "add", "feature": {"index": 90}, "value": 52.5}]}
WALKS = ["Ada walked down to the", "One day we all went to the", "In the morning Noah ran to the"]
ENDINGS = ["barn", "sea", "castle"]
TASK = """
task: walks
dataset_path: json
dataset_kwargs: {data_files: {test: walks.json}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: " "
metric_list: [{metric: acc}]
"""
HARNESS = """
import json, sys
import steerserve.evals.lm_eval_model
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

told = simple_evaluate(
    model="steerserve",
    model_args=json.loads(sys.argv[1]),
    tasks=["walks"],
    task_manager=TaskManager(include_path=".", include_defaults=False),
    log_samples=True,
    bootstrap_iters=0,
)
samples = sorted(told["samples"]["walks"], key=lambda sample: sample["doc_id"])
print(json.dumps([[one[0][0] for one in sample["resps"]] for sample in samples]))
"""
INSPECT = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.solver import generate

config = GenerateConfig(max_tokens=12, seed=1, temperature=1, batch=sys.argv[2] == "batch" or None)
task = Task(dataset=[Sample(input="Tell me a story.")], solver=generate(), config=config)
(log,) = eval(
    task, model="steerserve/" + sys.argv[3], model_args=json.loads(sys.argv[1]),
    log_dir="logs", display="none",
)
assert log.status == "success", log.error
print(json.dumps(log.samples[0].output.completion))
"""
SWEEP = """
import sys
from types import SimpleNamespace
from steerserve.cli import main
from steerserve.evals import sweep

def stopped(_):
    raise KeyboardInterrupt

sweep.time = SimpleNamespace(sleep=stopped)
sys.argv = ["steerserve", "eval", "sweep", *sys.argv[1:]]
sys.stderr = sys.stdout
try:
    main()
except SystemExit as end:
    print(end.code)
"""

pytestmark = pytest.mark.timeout(400)  # the libraries are imported anew by each program

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="the extra `lm-eval` is not installed"
)
needs_inspect = pytest.mark.skipif(
    importlib.util.find_spec("inspect_ai") is None
    or not any(one.name == "steerserve" for one in entry_points(group="inspect_ai")),
    reason="the extra `inspect` is not installed",
)


@pytest.fixture(autouse=True)
def profile(sea: Running) -> Iterator[None]:
    """A profile that turns the feature of the sea up."""
    made = sea.data("POST", "/api/profiles", {"name": "at sea", "steering": {"90": 52.5}}, 201)
    yield
    sea.data("DELETE", f"/api/profiles/{made['id']}")


def ran(live: Running, folder: Path, *words: str) -> str:
    """What a program prints that asks the service."""
    questions = [{"query": walk, "choices": ENDINGS, "gold": 1} for walk in WALKS]
    (folder / "walks.json").write_text(json.dumps(questions))
    (folder / "walks.yaml").write_text(TASK)
    environment = {"STEERSERVE_URL": live.url, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **environment, "HF_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def by_hand(live: Running, **fields: Any) -> list[list[float]]:
    """The log-likelihoods of the endings, by requests of our own."""
    bos = live.data("POST", "/api/tokenize", {"text": ""})["ids"]

    def tokens(text: str) -> list[int]:
        asked = {"text": text, "add_special_tokens": False}
        ids: list[int] = live.data("POST", "/api/tokenize", asked)["ids"]
        return bos + ids

    found = []
    for walk in WALKS:
        scores = []
        for ending in ENDINGS:
            whole = tokens(f"{walk} {ending}")
            answer = live.complete(
                whole, max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234, **fields
            )
            given = answer["choices"][0]["logprobs"]["token_logprobs"]
            scores.append(sum(given[len(tokens(walk)) : -1]))
        found.append(scores)
    return found


@needs_harness
@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({}, {}),
        ({"profile": "at sea"}, {"model": f"{demo.MODEL_NAME}@at sea"}),
        ({"interventions": EDITS}, {"interventions": EDITS, "score_steered": True}),
    ],
)
def test_log_likelihoods_are_those_of_the_same_requests_by_hand(
    sea: Running, tmp_path: Path, arguments: dict[str, Any], fields: dict[str, Any]
) -> None:
    told = json.loads(ran(sea, tmp_path, "-c", HARNESS, json.dumps(arguments)).splitlines()[-1])
    assert told == by_hand(sea, **fields)


@needs_harness
def test_a_sweep_writes_the_scores_of_a_task_at_each_strength(sea: Running, tmp_path: Path) -> None:
    words = ["eval", "sweep", "walks", "--strengths", "0,52.5", "--feature", "90"]
    table = ran(sea, tmp_path, "-m", "steerserve", *words, "--include-path", ".")
    assert "| 0 | 0.3333 |" in table
    assert "| 52.5 | 1.0000 |" in table
    curve = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [point["score"] for point in curve["points"]] == [pytest.approx(1 / 3), 1.0]
    assert curve["points"][0]["low"] < 1 / 3 < curve["points"][0]["high"]
    assert (tmp_path / "sweep" / "sweep.svg").read_text().startswith("<svg")
    batch = sea.http.get(f"/v1/batches/{curve['batch_id']}").json()
    assert batch["request_counts"] == {"total": 18, "completed": 18, "failed": 0}


@needs_harness
def test_a_sweep_that_is_stopped_cancels_its_batch(sea: Running, tmp_path: Path) -> None:
    words = ["walks", "--feature", "90", "--include-path", ".", "--strengths"]
    *_, said, code = ran(sea, tmp_path, "-c", SWEEP, *words, "0" + ",9" * 40).splitlines()
    assert (said[:10], code) == ("the batch ", "130")
    batch = sea.http.get(f"/v1/batches/{said.split()[2]}").json()
    assert batch["status"] in ("cancelling", "cancelled")


@needs_harness
def test_a_sweep_of_an_unknown_task_names_it(sea: Running, tmp_path: Path) -> None:
    words = ["nosuch", "--feature", "90", "--strengths", "0"]
    *_, said, code = ran(sea, tmp_path, "-c", SWEEP, *words).splitlines()
    assert (said, code) == (
        "the harness has no task 'nosuch'; `--include-path` adds a folder of tasks",
        "1",
    )


@needs_inspect
@pytest.mark.parametrize("mode", ["alone", "batch"])
def test_inspect_gets_the_text_of_the_same_request_by_hand(
    sea: Running, tmp_path: Path, mode: str
) -> None:
    arguments = json.dumps({"profile": "at sea"})
    told = json.loads(
        ran(sea, tmp_path, "-c", INSPECT, arguments, mode, demo.MODEL_NAME).splitlines()[-1]
    )
    sent = {"max_tokens": 12, "seed": 1, "temperature": 1, "profile": "at sea"}
    assert told == sea.chat("Tell me a story.", **sent)["choices"][0]["message"]["content"]
