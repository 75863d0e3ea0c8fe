"""Memory that runs out ends one pass's requests and nothing else; what is left is given out, measured and given back."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import CapturingLogger
from torch import Tensor

from steerserve import demo
from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.batch import apart, group
from steerserve.worker.model import budget, native, packing
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import Shelf
from steerserve.worker.process import loading, loop
from steerserve.worker.process.commands import Commands
from steerserve.worker.process.wire import Wire
from steerserve.worker.sae import formats
from tests import asking
from tests.refusals import refusal_of
from tests.worker.running import (
    FIELDS,
    Bench,
    alone,
    generated,
    hooked,
    open_checkpoint,
    site_of,
    words,
)
from tests.worker.saes import arrays, config_v6, source, write


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's own log handler would keep an error that was logged, and with it the tensors of its frames."""
    monkeypatch.setattr(group, "log", CapturingLogger())
    monkeypatch.setattr(apart, "log", CapturingLogger())
    monkeypatch.setattr(loop, "log", CapturingLogger())


EXHAUSTED = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]


def failing(error: Exception) -> Callable[[Tensor], None]:
    def fail(_: Tensor) -> None:
        raise error

    return fail


# ---------------------------------------------------------------- while generating


@pytest.mark.parametrize("error", EXHAUSTED, ids=["card", "python", "host"])
def test_the_requests_of_the_pass_end_and_nobody_else(llama: Checkpoint, error: Exception) -> None:
    bench = Bench(llama)
    running = bench.ask(1, words(20))
    bench.step(3)
    bench.ask(2, words(50), max_tokens=7)

    def fail_prefill(hidden: Tensor) -> None:
        if hidden.shape[1] > 1:
            raise error

    with hooked(site_of(llama), fail_prefill):
        bench.step()
    refused = bench.refused[2]
    assert refused.code == "INSUFFICIENT_MEMORY"
    assert refused.details == {
        "device": "cpu",
        "device_name": "host memory",
        "prompt_tokens": len(llama.encode(words(50), special=True)),
        "max_new_tokens": 7,
        "batch_rows": 1,
    }
    bench.run()
    assert running.tokens == generated(llama, words(20), 16)


def test_running_out_fifty_times_leaves_nothing_behind(llama: Checkpoint) -> None:
    bench = Bench(llama)
    ids = llama.encode(words(40), special=True)
    held: list[weakref.ref[Tensor]] = []

    def fail(hidden: Tensor) -> None:
        local = hidden.clone()
        held.append(weakref.ref(local))
        raise torch.OutOfMemoryError("no memory")

    gc.freeze()  # what other tests left is not looked through each time
    try:
        for request in range(50):
            with hooked(site_of(llama), fail):
                bench.ask(request, "", ids=ids, seed=request if request % 2 else None)
                bench.run()
            bench.answers.clear()
            assert bench.batch.is_idle
            assert bench.held_bytes == 0
    finally:
        gc.unfreeze()
    gc.collect()
    assert len(held) == 50
    assert [found for found in held if found() is not None] == []
    assert {refused.code for refused in bench.refused.values()} == {"INSUFFICIENT_MEMORY"}
    answer = bench.ask(99, words(20))
    bench.run()
    assert answer.tokens == generated(llama, words(20), 16)


def test_the_frames_of_the_error_hold_nothing_when_memory_is_given_back(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def fail(hidden: Tensor) -> None:
        local = hidden.clone()
        held.append(weakref.ref(local))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(memory, "give_back", lambda: alive.append(held[0]() is not None))
    bench = Bench(llama)
    bench.ask(1, words(20))
    with hooked(site_of(llama), fail):
        bench.run()
    assert alive == [False]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_cache_that_cannot_grow_refuses_the_newcomer_alone(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    bench = Bench(llama)
    running = bench.ask(1, words(20), max_tokens=40)
    bench.step(3)
    resize = Shelf.resize

    def fail(shelf: Shelf, room: int) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Shelf, "resize", fail)
    bench.ask(2, [words(60), words(50)], seed=seed)
    bench.step()
    assert bench.refused[2].code == "INSUFFICIENT_MEMORY"
    assert not bench.live_rows(2)
    monkeypatch.setattr(Shelf, "resize", resize)
    later = bench.ask(3, words(60))
    bench.run()
    assert running.tokens == generated(llama, words(20), 40)
    assert later.tokens == alone(llama, words(60)).tokens


def test_a_cache_that_grew_in_part_serves_on(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(llama)
    running = [bench.ask(i, words(20, i), max_tokens=30) for i in (1, 2)]
    bench.step(3)
    new_zeros, made = Tensor.new_zeros, []

    def third_fails(tensor: Tensor, *shape: Any, **more: Any) -> Tensor:
        made.append(shape)
        if len(made) == 3:
            raise torch.OutOfMemoryError("no memory")
        return new_zeros(tensor, *shape, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "new_zeros", third_fails)
        bench.ask(3, words(100), max_tokens=60)
        bench.step()
    assert bench.refused[3].code == "INSUFFICIENT_MEMORY"
    later = bench.ask(4, words(90), max_tokens=30)
    bench.run()
    assert [a.tokens for a in running] == [generated(llama, words(20, i), 30) for i in (1, 2)]
    assert later.tokens == generated(llama, words(90), 30)


def test_an_error_names_the_card_that_ran_out() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. GPU 1 has a total capacity of 79 GiB")
    usual = torch.device("cuda", 0)
    assert memory.exhausted(error, usual) == torch.device("cuda", 1)
    assert memory.exhausted(torch.OutOfMemoryError("no memory"), usual) == usual
    assert not memory.is_exhausted(RuntimeError("shapes do not match"))


# ---------------------------------------------------------------- what is left


def free_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(memory, "free", lambda _: size)


def test_the_cache_gets_its_share_of_what_is_free(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = llama.kv_bytes_per_token
    free_of(monkeypatch, 3 * 6400 * each)
    assert budget.kv_tokens(llama, 0, 64, 0) == 6400
    assert budget.kv_tokens(llama, 320 * each, 64, 0) == 320
    assert budget.prefix_tokens(llama, 6400, None) == 1600
    assert budget.prefix_tokens(llama, 6400, 0) == 0


def test_a_share_too_small_is_raised_to_the_least_context_where_it_fits(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = llama.kv_bytes_per_token
    free_of(monkeypatch, 320 * each)
    assert budget.kv_tokens(llama, 0, 200, 64 * each) == 224
    refusal = refusal_of(lambda: budget.kv_tokens(llama, 0, 200, 160 * each))
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details["min_context_tokens"] == 200


def test_an_sae_that_takes_the_room_of_the_cache_is_refused(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, cpu = llama.kv_bytes_per_token, torch.device("cpu")
    tokens = 8 * MIB // each
    free_of(monkeypatch, 20 * MIB)
    room = budget.SaeRoom.beside(llama, tokens, 0, 2 * MIB)
    room.check_free(cpu, 10 * MIB)
    refusal = refusal_of(lambda: room.check_free(cpu, 10 * MIB + 1))
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details == {
        "device": "cpu",
        "projected_mb": 11,
        "kv_reserve_mb": 8,
        "kv_context_tokens": tokens,
        "working_reserve_mb": 2,
        "available_mb": 20,
    }
    # what the cache holds already is not free any more, and is not needed again
    budget.SaeRoom.beside(llama, tokens, tokens, 2 * MIB).check_free(cpu, 18 * MIB)


class Told:
    """The engine's end of the socket with nobody behind it: commands in, events out."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def send(self, event: Any) -> None:
        self.events.append(event)

    def wake(self) -> None:
        pass


def test_an_attach_is_refused_before_its_tensors_are_read(
    folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    commands = Commands(told.send, told.wake)
    commands.obey(m.Load(id=1, path=str(folder("llama")), **FIELDS))
    sae = write(tmp_path / "sae", config_v6("standard", d_in=32), arrays("standard", d_in=32))
    free_of(monkeypatch, 1000)
    monkeypatch.setattr(formats, "load", lambda _: pytest.fail("the tensors were read"))
    refusal = refusal_of(
        lambda: commands.obey(m.Apply(2, m.State((m.PlacedSae("sae@0", source(sae), 0),))))
    )
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert isinstance(commands.loaded, loading.LoadedModel)
    assert refusal.details["kv_context_tokens"] == commands.loaded.kv_tokens


def test_a_load_that_runs_out_of_memory_says_so(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(loading, "Checkpoint", fail)
    wire = Told()
    worker = loop.Worker(wire)  # type: ignore[arg-type]
    command = m.Load(id=1, path=str(folder("llama")), **FIELDS)
    worker.answer(command, lambda: worker.commands.obey(command))
    assert [event.code for event in wire.events] == ["INSUFFICIENT_MEMORY"]
    assert wire.events[0].details["device"] == "cpu"


# ---------------------------------------------------------------- measured, and given back when idle


async def test_a_host_has_no_cards_to_measure_but_tells_what_it_holds(
    engine: CheckpointEngine, folder: Callable[[str], Path]
) -> None:
    measured = await engine.ask(m.Measure())
    assert (measured.devices, measured.kv_reserve, measured.working) == ({}, 0, 0)
    fields = FIELDS | {"devices": ["cpu"], "working_mb": 3}
    facts = await engine.load(lambda _: None, path=str(folder("llama")), **fields)
    measured = await engine.ask(m.Measure())
    assert (measured.devices, measured.working) == ({}, 3 * MIB)
    assert measured.kv_reserve == facts.kv_tokens * facts.kv_bytes_per_token
    assert list(facts.memory_by_device_mb) == ["cpu"]
    assert facts.memory_mb == facts.memory_by_device_mb["cpu"] > 50
    assert (facts.gpu_indices, facts.device, facts.quantization) == ([], "cpu", "float32")
    assert facts.supports_embeddings


HEADS_AGAIN = int(packing.can_pack(torch.bfloat16))
"""The output head is the token embedding. Where there are kernels for bfloat16, it is held a second time, packed."""


async def test_the_parts_of_the_memory_are_measured_where_they_lie(
    engine: CheckpointEngine,
) -> None:
    facts = await engine.load(lambda _: None, path=str(demo.MODEL_DIR), **FIELDS)
    (loaded,) = (await engine.ask(m.Measure())).parts
    stored = load_file(demo.MODEL_DIR / "model.safetensors")
    head = stored["model.embed_tokens.weight"].nbytes * HEADS_AGAIN
    assert loaded.weights == pytest.approx(sum(t.nbytes for t in stored.values()) + head, abs=1024)
    assert (loaded.device, loaded.cache, loaded.saes) == ("cpu", 0, 0)
    assert loaded.process is not None
    assert loaded.process >> 20 == pytest.approx(facts.memory_mb, rel=0.2)

    sae = demo.saes()[0]
    placed = m.PlacedSae("demo", m.SaeSource(str(sae.path), sae.path.name), sae.layer, check=False)
    await engine.change(lambda state: state.attached(placed))
    prompt = m.Tokens([5] * 300)
    async for _ in engine.run(asking.generate(0, [prompt], m.Sampling(max_tokens=4), m.Follow())):
        pass
    (used,) = (await engine.ask(m.Measure())).parts
    weights = load_file(sae.path / "sae_weights.safetensors").values()
    assert used.saes == sum(tensor.nbytes for tensor in weights)
    # the keys and values of the conversation are kept for its next turn
    assert used.cache in {n * facts.kv_bytes_per_token for n in range(300, 305)}
    assert used.weights == loaded.weights


@pytest.mark.parametrize(("quantization", "bits"), [("Q8", 8), ("Q4", 4)])
def test_quantized_weights_count_as_they_are_held(quantization: str, bits: int) -> None:
    held = open_checkpoint(demo.MODEL_DIR, quantization)
    plain = {
        name: tuple(t.shape) for name, t in load_file(demo.MODEL_DIR / "model.safetensors").items()
    }
    layers = sum(math.prod(shape) for name, shape in plain.items() if "_proj" in name)
    others = sum(math.prod(shape) for name, shape in plain.items() if "_proj" not in name)
    head = math.prod(plain["model.embed_tokens.weight"])
    is_compiled = native.kernels() is not None
    weights = held.weights[torch.device("cpu")]
    # the compiled product has a head of its own in 8 bits
    codes = layers * bits // 8 + 2 * others + head * (1 if is_compiled else 2 * HEADS_AGAIN)
    # a block of 64 weights has a scale of 8 bits, which the compiled product has in 32
    scales = layers // (16 if is_compiled else 64) if bits == 4 else 0
    assert codes + scales <= weights <= codes * 1.03 + scales


def test_tensors_over_the_same_memory_count_once() -> None:
    whole = torch.zeros(8, 8)
    assert memory.bytes_by_device([whole, whole[:2], whole.t(), torch.zeros(1)]) == {
        torch.device("cpu"): whole.nbytes + 4
    }


class Silence(Wire):
    """A wire on which commands come as scripted; it counts how long the engine is ready to wait."""

    def __init__(self, *commands: m.Command | None) -> None:
        self.commands = list(commands)
        self.waits: list[float | None] = []
        self.events: list[Any] = []
        self.is_closed = False

    def receive(self, *, wait: bool, seconds: float | None = None) -> Any:
        if wait:
            self.waits.append(seconds)
            if not self.commands:
                self.is_closed = True
            elif (command := self.commands.pop(0)) is not None:
                yield command

    def send(self, event: m.Event) -> None:
        self.events.append(event)


def ran(monkeypatch: pytest.MonkeyPatch, wire: Silence) -> int:
    """How often memory was given back while the engine ran through the script."""
    calls: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(1))
    loop.Worker(wire).run()
    return len(calls)


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_memory_is_given_back_once_after_each_stretch_of_work(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    load = m.Load(id=1, path=str(folder("llama")), idle_cache_release_s=seconds, **FIELDS)
    ask = asking.generate(2, [m.Tokens([5] * 20)], m.Sampling(temperature=0.0, max_tokens=3))
    # None is a wait that ended without a command
    wire = Silence(load, None, ask, None, None)
    # the load gives back what it took for a moment
    assert ran(monkeypatch, wire) == 2
    assert wire.waits == [None, None, None, seconds, None, None]


def test_memory_is_kept_where_nothing_else_is_asked(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = asking.read(2, [m.Tokens([5] * 20)], m.Embed())
    wire = Silence(m.Load(id=1, path=str(folder("llama")), **FIELDS), None, ask, None, None)
    assert ran(monkeypatch, wire) == 1
    assert set(wire.waits) == {None}
