"""A real engine process, as the control plane sees it: answers, streams, cancels, and every way to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from steerserve import messages as m
from steerserve.engines.checkpoint import process
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engines.checkpoint.prompts import TokensGiven
from steerserve.engines.ray.cluster import RayCluster
from steerserve.errors import Refusal
from steerserve.rules.residency.heartbeat import Activity
from steerserve.settings import Settings
from steerserve.worker.batch.group import ROWS_MAXIMUM
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.backend import is_ray
from tests.refusals import refused
from tests.waiting import LOOK, until
from tests.worker.models import CONTEXT, VOCABULARY
from tests.worker.running import FIELDS, generated, words
from tests.worker.saes import arrays, attaching, config_older, config_v6, source, write

Folder = Callable[[str], Path]
Launches = Launcher | RayCluster
KEY = "sae@0"
GREEDY = m.Sampling(temperature=0.0, max_tokens=16)
LONG = m.Sampling(temperature=0.0, max_tokens=200)
Pieces = list[m.Started | m.Piece]


@pytest.fixture(scope="session")
def here() -> Launcher:
    return Launcher("CRITICAL", "json")


@pytest.fixture
async def launcher(here: Launcher, pytestconfig: pytest.Config) -> AsyncIterator[Launches]:
    """Starts engines of this machine, or on the nodes of the cluster of the run."""
    if not is_ray(pytestconfig):
        yield here
        return
    cluster = RayCluster(Settings(_env_file=None))  # type: ignore[call-arg]
    yield cluster
    await cluster.close()


@pytest.fixture
async def empty(launcher: Launches) -> AsyncIterator[CheckpointEngine]:
    """An engine without a model."""
    engine = await launcher.launch()
    yield engine
    await engine.stop()


@pytest.mark.parametrize("prompts", [TokensGiven(), None])
async def test_an_engine_takes_prompts_that_are_tokens_already(
    launcher: Launches, folder: Folder, prompts: TokensGiven | None
) -> None:
    engine = await launcher.launch(prompts)
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    given: list[Any] = [m.Tokens([5, 6, 7])]
    started, *pieces = [
        e async for e in engine.run(asking.generate(0, given, GREEDY, m.Suppressed()))
    ]
    assert isinstance(started, m.Started)
    assert started.prompt_tokens == [3]
    assert pieces
    await engine.stop()


@pytest.fixture
async def engine(empty: CheckpointEngine, folder: Folder) -> CheckpointEngine:
    """An engine that holds the llama checkpoint."""
    await empty.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    return empty


async def events(
    engine: CheckpointEngine, prompt: str, sampling: m.Sampling = GREEDY, **more: Any
) -> Pieces:
    plan = more.pop("plan", m.Follow())
    stream = engine.run(asking.generate(0, [m.Text(prompt)], sampling, plan, n=more.pop("n", 1)))
    return [event async for event in stream]


def text_of(found: Pieces, choice: int = 0) -> str:
    return "".join(e.text for e in found if isinstance(e, m.Piece) and e.choice == choice)


def truth(model: Checkpoint, prompt: str, max_tokens: int = 16) -> str:
    return model.decode(generated(model, prompt, max_tokens)).rstrip("\ufffd")


async def test_rows_of_clients_take_turns_at_joining_the_batch(engine: CheckpointEngine) -> None:
    prompts = [m.Text(words(9))] * (2 * ROWS_MAXIMUM)
    wide = engine.run(asking.generate(0, [*prompts], GREEDY, m.Follow(), client="greedy"))
    assert isinstance(await anext(wide), m.Started)
    asked = [
        engine.run(asking.generate(0, [m.Text(words(9))], GREEDY, m.Follow(), client="polite")),
        engine.run(asking.score(0, [m.Text(words(9))], top=1, client="scoring")),
        engine.run(asking.read(0, [m.Text(words(9))], m.Embed(), client="embedding")),
    ]
    finished = []

    async def finish(name: str, stream: AsyncIterator[Any]) -> None:
        async for event in stream:
            if not isinstance(event, m.Started) and m.is_last(event):
                finished.append(name)

    names = ["polite", "scoring", "embedding"]
    await asyncio.gather(
        finish("greedy", wide), *(finish(*one) for one in zip(names, asked, strict=True))
    )
    assert max(finished.index(name) for name in names) < len(prompts) * 3 // 4


async def inspect_code(engine: CheckpointEngine, path: Path) -> str | None:
    """The code that an inspection is refused with; None when it is not."""
    try:
        await engine.ask(m.Inspect(source=source(path)))
    except Refusal as refusal:
        return refusal.code
    return None


def sae_folder(path: Path) -> Path:
    return write(path, config_v6("standard", d_in=32), arrays("standard", d_in=32))


# ---------------------------------------------------------------- loading and answering


async def test_a_load_reports_its_stages_and_the_facts_of_the_model(
    empty: CheckpointEngine, folder: Folder
) -> None:
    stages: list[m.Progress] = []
    facts = await empty.load(stages.append, path=str(folder("llama")), **FIELDS)
    assert (facts.architecture, facts.layers, facts.hidden_size) == ("LlamaForCausalLM", 2, 32)
    assert (facts.vocabulary, facts.context_length) == (VOCABULARY, CONTEXT)
    assert facts.kv_tokens * facts.kv_bytes_per_token <= 8 << 20
    assert not facts.chat_template
    percents = [stage.percent for stage in stages]
    assert percents == sorted(percents)
    assert len(stages) >= 3


async def test_a_stream_starts_once_and_ends_each_choice_once(
    engine: CheckpointEngine, llama: Checkpoint
) -> None:
    found = await events(engine, words(20), n=3)
    started, *pieces = found
    assert started == m.Started(started.id, [len(llama.encode(words(20), special=True))])
    for choice in range(3):
        own = [p for p in pieces if isinstance(p, m.Piece) and p.choice == choice]
        assert [p.finish for p in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish == "length"
        assert own[-1].tokens == 16
        assert text_of(found, choice) == truth(llama, words(20))


async def test_a_request_that_never_fits_is_refused_and_the_next_is_served(
    engine: CheckpointEngine, llama: Checkpoint
) -> None:
    refusal = await refused(events(engine, words(20), m.Sampling(max_tokens=10_000)))
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.details["max_context_tokens"] == CONTEXT
    assert text_of(await events(engine, words(20))) == truth(llama, words(20))


async def test_an_engine_without_a_model_refuses_by_code(empty: CheckpointEngine) -> None:
    steering = m.setting(steering=m.Steering(1, True, {KEY: {0: 1.0}}))
    for work in (events(empty, "hello"), empty.change(steering)):
        assert (await refused(work)).code == "MODEL_NOT_LOADED"


# ---------------------------------------------------------------- cancelling


async def test_closing_the_iterator_ends_the_request_in_the_engine(
    engine: CheckpointEngine, llama: Checkpoint, tmp_path: Path
) -> None:
    await engine.change(attaching(sae_folder(tmp_path)))
    steered = m.Overlay(0, {KEY: {1: 0.5}})
    stream = engine.run(asking.generate(0, [m.Text(words(20))], LONG, steered))
    async for event in stream:
        if isinstance(event, m.Piece):
            break
    await stream.aclose()
    found = []
    counts = []
    # only the cancelled request is steered, so the count of steered passes stands still once it is gone
    async for event in engine.run(asking.generate(0, [m.Text(words(9))], GREEDY, m.Suppressed())):
        found.append(event)
        counts.append(engine.passes.applied[KEY])
    assert 0 < counts[1] == counts[-1] < 200
    assert text_of(found) == truth(llama, words(9))


async def test_steering_acts_on_the_next_request_and_ends_with_it(
    engine: CheckpointEngine, llama: Checkpoint, tmp_path: Path
) -> None:
    attached = (await engine.change(attaching(sae_folder(tmp_path))))[KEY]
    assert (attached.layer_module_path, attached.d_in) == ("model.layers.0", 32)
    plain = truth(llama, words(20))
    assert text_of(await events(engine, words(20))) == plain
    assert engine.passes.applied == {KEY: 0}
    await engine.change(m.setting(steering=m.Steering(1, True, {KEY: {1: 20.0, 5: -20.0}})))
    assert text_of(await events(engine, words(20))) != plain
    assert engine.passes.applied[KEY] > 0
    await engine.change(lambda state: state.detached(KEY))
    assert engine.passes.applied == {}
    assert text_of(await events(engine, words(20))) == plain


# ---------------------------------------------------------------- heartbeats


async def test_an_idle_engine_gives_signs_and_a_stopped_one_does_not(
    engine: CheckpointEngine,
) -> None:
    await until(lambda: engine.heartbeat.sign().activity is Activity.IDLE, LOOK)
    before = engine.heartbeat.sign().count
    await until(lambda: engine.heartbeat.sign().count > before, LOOK)
    assert engine.pid
    os.kill(engine.pid, signal.SIGSTOP)
    await until(lambda: engine.heartbeat.sign().is_stopped, LOOK)
    assert engine.heartbeat.sign() == engine.heartbeat.sign()
    os.kill(engine.pid, signal.SIGCONT)
    await until(lambda: not engine.heartbeat.sign().is_stopped, LOOK)


async def test_a_command_that_was_taken_back_before_it_was_read_is_not_carried_out(
    engine: CheckpointEngine, tmp_path: Path
) -> None:
    await engine.change(attaching(sae_folder(tmp_path)))
    assert engine.pid
    os.kill(engine.pid, signal.SIGSTOP)
    detaching = asyncio.ensure_future(engine.change(lambda state: state.detached(KEY)))
    await until(lambda: engine._asks._answers)
    engine.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "it stands still"))
    with pytest.raises(Refusal):
        await detaching
    with pytest.raises(Refusal):
        await engine.change(m.setting(steering=m.Steering(1, True, {KEY: {1: 1.0}})))
    os.kill(engine.pid, signal.SIGCONT)
    engine.heartbeat.wake()
    await engine.change(m.setting(steering=m.Steering(2, True, {KEY: {1: 1.0}})))
    await engine.change(lambda state: state.detached(KEY))


async def test_a_lost_engine_ends_for_the_reason_that_it_was_given(
    engine: CheckpointEngine,
) -> None:
    engine.lose("it stood still")
    assert await engine.ended == "it stood still"
    with pytest.raises(Refusal, match="it stood still"):
        await engine.ask(m.Measure())


# ---------------------------------------------------------------- ending


async def test_a_killed_engine_ends_its_streams_by_code_and_names_the_signal(
    engine: CheckpointEngine,
) -> None:
    assert engine.pid
    stream = engine.run(asking.generate(0, [m.Text(words(20))], LONG, m.Follow(), n=4))

    async def until_killed() -> None:
        async for event in stream:
            if isinstance(event, m.Piece):
                os.kill(engine.pid or 0, signal.SIGKILL)

    assert (await refused(until_killed())).code == "ENGINE_UNAVAILABLE"
    assert "signal 9" in await engine.ended
    assert not psutil.pid_exists(engine.pid)
    assert (await refused(events(engine, "hello"))).code == "MODEL_NOT_LOADED"


@pytest.mark.parametrize(
    ("stage", "code"),
    [("loading_tokenizer", "MODEL_LOAD_FAILED"), (m.LOADING_WEIGHTS, "ENGINE_UNAVAILABLE")],
)
async def test_an_engine_killed_while_it_loads_ends_the_load_by_code(
    empty: CheckpointEngine, folder: Folder, stage: str, code: str
) -> None:
    def kill(progress: m.Progress) -> None:
        if progress.stage == stage and not empty.ended.done():
            os.kill(empty.pid or 0, signal.SIGKILL)

    async def load_and_ask() -> None:
        await empty.load(kill, path=str(folder("llama")), **FIELDS)
        # the load may win the race against the signal; the engine is gone all the same
        await empty.ended
        await empty.ask(m.Inspect(source=source("nowhere")))

    assert (await refused(load_and_ask())).code in (code, "ENGINE_UNAVAILABLE")


async def test_stopping_leaves_no_process_and_refuses_what_is_in_flight(
    launcher: Launches, folder: Folder
) -> None:
    engine = await launcher.launch()
    assert engine.pid
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    stream = engine.run(asking.generate(0, [m.Text(words(20))], LONG, m.Follow(), n=4))
    async for event in stream:
        if isinstance(event, m.Piece):
            break
    process = psutil.Process(engine.pid)
    await engine.stop(Refusal("SHUTTING_DOWN", "the service stops"))
    with pytest.raises(Refusal) as refused:
        async for _ in stream:
            pass
    assert refused.value.code == "SHUTTING_DOWN"
    assert not process.is_running()
    assert engine._process.exitcode == 0
    where = f" on {engine.node}" if engine.node else ""
    assert await engine.ended == f"the engine process ended{where}"
    await engine.stop()


async def test_two_engines_end_independently(launcher: Launches, engine: CheckpointEngine) -> None:
    other = await launcher.launch()
    await other.stop()
    assert text_of(await events(engine, words(20)))


# ---------------------------------------------------------------- broken files


def broken(kind: str, source: Path, target: Path) -> Path:
    """A copy of a checkpoint folder that is damaged in one way."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = target / "model.safetensors"
    config = json.loads((target / "config.json").read_text())
    match kind:
        case "no configuration":
            (target / "config.json").unlink()
        case "broken configuration":
            (target / "config.json").write_text("{")
        case "unknown architecture":
            (target / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
        case "no weights":
            weights.unlink()
        case "truncated weights":
            weights.write_bytes(weights.read_bytes()[:5000])
        case "weights of another shape":
            (target / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
        case "no tokenizer":
            (target / "tokenizer.json").unlink()
            (target / "tokenizer_config.json").unlink()
        case "empty folder":
            for file in target.iterdir():
                file.unlink()
    return target


BROKEN = (
    "no configuration",
    "broken configuration",
    "unknown architecture",
    "no weights",
    "truncated weights",
    "weights of another shape",
    "no tokenizer",
    "empty folder",
)


async def test_a_broken_checkpoint_is_refused_and_the_engine_still_answers(
    empty: CheckpointEngine, folder: Folder, tmp_path: Path, llama: Checkpoint
) -> None:
    paths = [broken(kind, folder("llama"), tmp_path / str(i)) for i, kind in enumerate(BROKEN)]
    for path in [*paths, tmp_path / "nowhere", folder("bert")]:
        refusal = await refused(empty.load(lambda _: None, path=str(path), **FIELDS))
        assert refusal.code == "MODEL_LOAD_FAILED", path
        claims = (await empty.ask(m.Inspect(source=source(sae_folder(tmp_path / "sae"))))).claims
        assert claims.d_in == 32
    await empty.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    assert text_of(await events(empty, words(20))) == truth(llama, words(20))


async def test_no_configuration_of_an_sae_ends_the_engine(
    empty: CheckpointEngine, tmp_path: Path
) -> None:
    configs = [
        config_older(hook_point=..., hook_point_layer="three", activation_fn_str="relu"),
        config_older(hook_point=7),
        config_older(model_name={"a": 1}, hook_point_layer=[1]),
        config_older(activation_fn_str="topk", activation_fn_kwargs=["k"]),
        config_older(d_in="x", d_sae=None),
    ]
    for i, config in enumerate(configs):
        path = write(tmp_path / str(i), config, arrays("standard"))
        assert await inspect_code(empty, path) in (None, "SAE_LOAD_FAILED"), config
    assert (
        await empty.ask(m.Inspect(source=source(sae_folder(tmp_path / "good"))))
    ).claims.d_in == 32


async def test_an_sae_of_another_width_is_refused_and_leaves_no_hook(
    engine: CheckpointEngine, llama: Checkpoint, tmp_path: Path
) -> None:
    path = write(tmp_path, config_v6("standard"), arrays("standard"))
    refusal = await refused(engine.change(attaching(path)))
    assert refusal.code in ("SAE_INCOMPATIBLE", "SAE_LOAD_FAILED")
    assert text_of(await events(engine, words(20))) == truth(llama, words(20))


# ---------------------------------------------------------------- the border between the processes


@pytest.mark.local("asks the interpreter of this machine")
def test_sums_of_an_engine_have_the_same_bits_with_any_number_of_threads() -> None:
    """The tensor library reads the variable when it is imported, so the variable is set before that."""
    kept = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    code = (
        "import os, sys; sys.modules['torch'] = None\n"
        f"try: import {process.PRELOAD}\n"
        "except ImportError as error: print(error.name, os.environ['MKL_CBWR'])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True
    )
    assert loaded.stdout == "torch AUTO\n"


@pytest.mark.local("forks from the fork server of this machine")
async def test_an_engine_does_not_run_the_program_of_the_service_again(
    here: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, ran = tmp_path / "program.py", tmp_path / "ran"
    program.write_text(f"open({str(ran)!r}, 'w').close()\n")
    # as where the script of the package runs, and not `python -m`
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    engine = await here.launch()
    await engine.ask(m.Measure())
    await engine.stop()
    assert not ran.exists()
    assert sys.modules["__main__"].__file__ == str(program)


@pytest.mark.local("asks the interpreter of this machine")
def test_the_control_process_never_imports_the_tensor_library() -> None:
    code = (
        "import sys, steerserve.app.service, steerserve.cli, steerserve.engines.checkpoint.client; "
        "assert not {'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.local("holds the end of a process of this machine")
def test_a_command_to_an_engine_that_is_ending_is_refused(
    here: Launcher, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = await here.launch()
        await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
        ends = asyncio.Event()
        wait = engine._process.wait

        async def waiting(*_: object) -> None:
            await ends.wait()
            await wait()

        monkeypatch.setattr(engine._process, "wait", waiting)
        stream = engine.run(asking.generate(0, [m.Text("the boats")], LONG, m.Follow()))
        assert isinstance(await anext(stream), m.Started)
        os.kill(engine.pid or 0, signal.SIGKILL)
        await until(engine._writer.is_closing)
        await stream.aclose()
        asked = asyncio.create_task(engine.ask(m.Measure()))
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)  # both have begun, and wait for the end of the process
        assert not asked.done()
        ends.set()
        assert (await refused(asked)).code == "ENGINE_UNAVAILABLE"
        await stopping

    # the service runs on uvloop, where a write to a closed socket raises at once
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
