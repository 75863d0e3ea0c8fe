"""How a GGUF model fails to load, what it is loaded without, and a stock `llama-server` program in place of the library."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.client import GgufEngine, Options
from steerserve.errors import Refusal
from steerserve.files import gguf
from tests import refusals
from tests.engines.llamas import SMALL, Write, answer, ask, loaded, refused, vectors
from tests.gguf import counted

PROGRAM = '''#!{python}
"""A program with llama-server's options."""
import argparse, http.server, json, os, sys, threading, time
import xllamacpp

MODE = {mode!r}
flags = argparse.ArgumentParser()
for name in "model host port ctx-size parallel batch-size ubatch-size threads n-gpu-layers cache-type-k".split():
    flags.add_argument("--" + name)
for name in "cache-type-v chat-template pooling api-key-file flash-attn tensor-split fit cache-ram".split():
    flags.add_argument("--" + name)
for name in "no-warmup embeddings kv-unified no-webui slots list-devices".split():
    flags.add_argument("--" + name, action="store_true")
given = flags.parse_args()
if given.list_devices:
    print("Available devices:")
    for i in range(2 if MODE == "cards" else 0):
        print(f"  CUDA{{i}}: Some Card (24000 MiB, 20000 MiB free)")
    sys.exit()
if MODE == "hangs":
    time.sleep(1000)
if given.embeddings and MODE == "refuses":
    sys.exit("error: pooling is not supported by this architecture")


class Dying(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        os.abort()


if given.embeddings and MODE == "dies":
    server = http.server.HTTPServer(("127.0.0.1", 0), Dying)
    print("main: server is listening on http://127.0.0.1:%d - starting" % server.server_port, flush=True)
    server.serve_forever()
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port, params.ui = given.model, [given.host], int(given.port), False
params.n_ctx, params.n_parallel, params.kv_unified = int(given.ctx_size), int(given.parallel), given.kv_unified
params.n_batch = params.n_ubatch = int(given.ubatch_size)
params.chat_template, params.warmup, params.fit_params = given.chat_template, False, given.fit != "off"
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(given.threads)
params.api_keys = [open(given.api_key_file).read().strip()]
assert os.stat(given.api_key_file).st_mode & 0o077 == 0
if given.embeddings:
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server = xllamacpp.Server(params)
print("srv init: args", json.dumps(sys.argv), flush=True)
print("main: server is listening on " + server.listening_address + " - starting the main loop", flush=True)
threading.Event().wait()
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return make_program(tmp_path)


def make_program(folder: Path, mode: str = "") -> Path:
    file = folder / "llama-server"
    file.write_text(PROGRAM.format(python=sys.executable, mode=mode))
    file.chmod(stat.S_IRWXU)
    return file


async def refusal_of(path: Path, header_of: Path | None = None, **options: object) -> Refusal:
    """Why a file does not load, though its header looked well when it was read."""
    engine = GgufEngine(Options(**{**SMALL, **options}))  # type: ignore[arg-type]
    header = gguf.read_header([header_of or path])
    with pytest.raises(Refusal) as caught:
        async with asyncio.timeout(20):
            await engine.load(lambda _: None, path=str(path), header=header)
    assert engine.ended.done()
    assert engine.pid is None or not psutil.pid_exists(engine.pid)
    await engine.stop()
    return caught.value


# ------------------------------------------------------------- the reasons


DAMAGE = {
    "cut short": (lambda data: data[:-100_000], "output.weight"),
    "cut in the header": (lambda data: data[:5000], "key-value"),
    "empty": (lambda data: b"", "magic"),
    "another format": (lambda data: b"NOPE" + data[4:], "magic"),
    "an unknown architecture": (lambda data: data.replace(b"llama", b"blama", 1), "'blama'"),
    "a missing key": (
        lambda d: d.replace(b"llama.embedding_length", b"llama.embedding_lengtx"),
        "llama.embedding_length",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_damaged_file_is_refused_with_the_engines_own_reason(
    write: Write, tmp_path: Path, kind: str
) -> None:
    damage, reason = DAMAGE[kind]
    file = tmp_path / "damaged.gguf"
    file.write_bytes(damage(write().read_bytes()))
    refusal = await refusal_of(file, header_of=write())
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert reason in refusal.message
    assert str(tmp_path) not in refusal.message
    assert not re.search(r"0x[0-9a-f]{4}", refusal.message)


async def test_a_file_that_is_known_to_be_cut_short_starts_nothing(
    write: Write, tmp_path: Path
) -> None:
    file = tmp_path / "short.gguf"
    file.write_bytes(write().read_bytes()[:-1000])
    refusal = await refusal_of(file)
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "1000 bytes" in refusal.message


async def test_proportions_must_name_every_card_and_here_is_none(write: Write) -> None:
    refusal = await refusal_of(write(), tensor_split="1,1")
    assert (refusal.code, refusal.details["cards"]) == ("INVALID_GGUF_TENSOR_SPLIT", 0)


async def loading(program: Path, file: Path) -> tuple[GgufEngine, asyncio.Task[m.Loaded]]:
    """An engine that loads its weights with a program that hangs."""
    engine = GgufEngine(Options(**SMALL, server_bin=str(program)))  # type: ignore[arg-type]
    stages: asyncio.Queue[str] = asyncio.Queue()
    header = gguf.read_header([file])
    load = asyncio.create_task(
        engine.load(lambda p: stages.put_nowait(p.stage), path="x", header=header)
    )
    while await stages.get() != "loading_weights":
        pass
    return engine, load


async def test_a_load_that_is_given_up_leaves_no_process(write: Write, tmp_path: Path) -> None:
    program = make_program(tmp_path, "hangs")
    engine, load = await loading(program, write())
    assert engine.pid is not None
    wrapper = psutil.Process(engine.pid)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert not wrapper.is_running()
    assert engine.ended.done()
    started = [p for p in psutil.process_iter() if str(program) in _arguments(p)]
    _, left = await asyncio.to_thread(psutil.wait_procs, started, 10)
    assert not left


async def test_stopping_during_a_load_ends_it_with_the_parting(
    write: Write, tmp_path: Path
) -> None:
    program = make_program(tmp_path, "hangs")
    engine, load = await loading(program, write())
    await engine.stop(Refusal("SHUTTING_DOWN", "the service is shutting down"))
    assert (await refusals.refused(load)).code == "SHUTTING_DOWN"


# ------------------------------------------------------------- a program


async def test_a_stock_program_serves_as_the_library_does(write: Write, program: Path) -> None:
    async with loaded(write("Q8_0"), server_bin=str(program)) as (engine, facts):
        assert (facts.dtype, facts.device, facts.supports_embeddings) == ("Q8_0", "cpu", True)
        assert await answer(ask(engine, "x", max_tokens=50)) == (counted(20), "stop", 21)
        talk = [{"role": "user", "content": "one"}]
        assert (await answer(ask(engine, talk)))[0] == counted(4)
        assert len((await vectors(engine, "one"))[0]) == 512
        (child,) = psutil.Process(engine.pid).children()
        key = engine._opened.server._http.headers["Authorization"].removeprefix("Bearer ")  # type: ignore[union-attr]
        assert key not in repr(child.cmdline())
        assert key not in repr(child.environ())
        key_file = child.cmdline()[child.cmdline().index("--api-key-file") + 1]
        assert not key_files(key_file)
    assert not child.is_running()


async def test_a_program_that_is_killed_is_the_engines_end(write: Write, program: Path) -> None:
    async with loaded(write(), server_bin=str(program)) as (engine, _):
        (child,) = psutil.Process(engine.pid).children()
        child.kill()
        async with asyncio.timeout(10):
            assert await engine.ended == "the engine process was ended by signal 9"
        assert (await refused(ask(engine, "one"))).code == "MODEL_NOT_LOADED"


async def test_a_program_does_not_outlive_its_engine(write: Write, program: Path) -> None:
    async with loaded(write(), server_bin=str(program)) as (engine, _):
        assert engine.pid is not None
        (child,) = psutil.Process(engine.pid).children()
        os.kill(engine.pid, signal.SIGKILL)
        await engine.ended
        assert await asyncio.to_thread(child.wait, 10) in (None, -9)


@pytest.mark.shows("model-record.15")
@pytest.mark.parametrize("mode", ["refuses", "dies"])
async def test_an_architecture_that_does_not_embed_is_loaded_without(
    write: Write, tmp_path: Path, mode: str
) -> None:
    program = make_program(tmp_path, mode)
    async with loaded(write(), server_bin=str(program)) as (engine, facts):
        assert not facts.supports_embeddings
        assert (await answer(ask(engine, "one")))[0] == counted(4, "two")


async def test_an_encoder_that_does_not_embed_is_of_no_use(write: Write, tmp_path: Path) -> None:
    program = make_program(tmp_path, "refuses")
    refusal = await refusal_of(write(kind="encoder", context=64), server_bin=str(program))
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "pooling is not supported" in refusal.message


async def test_the_cards_of_a_program_are_the_models(write: Write, tmp_path: Path) -> None:
    program = make_program(tmp_path, "cards")
    async with loaded(write(), server_bin=str(program), tensor_split="3, 1") as (engine, facts):
        assert facts.device == "cuda:0,cuda:1"
        (child,) = psutil.Process(engine.pid).children()
        arguments = child.cmdline()
        assert arguments[arguments.index("--tensor-split") + 1] == "3.0,1.0"
    # where the service has placed the model itself, that counts
    given = {"server_bin": str(program), "tensor_split": "3,1"}
    async with loaded(write(), split=[0.0, 2.0], **given) as (engine, facts):
        assert facts.device == "cuda:1"
        (child,) = psutil.Process(engine.pid).children()
        assert "0.0,2.0" in child.cmdline()
    refusal = await refusal_of(write(), server_bin=str(program), tensor_split="1")
    assert refusal.code == "INVALID_GGUF_TENSOR_SPLIT"


@pytest.mark.parametrize("name", ["missing", "a_file"])
async def test_a_program_that_cannot_be_run_is_said(
    write: Write, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a_file").write_text("no program")
    refusal = await refusal_of(write(), server_bin=str(tmp_path / name))
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "does not start" in refusal.message
    assert str(tmp_path) not in refusal.message


def key_files(name: str) -> list[str]:
    return [file.name for file in Path(name).parent.iterdir() if file.name == Path(name).name]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_cards_are_numbered_as_the_driver_numbers_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    process = await llama_process.start()
    try:
        # for a moment a process that has just begun shows no environment
        while not (environment := psutil.Process(process.pid).environ()):
            pass
    finally:
        await process.stop()
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
