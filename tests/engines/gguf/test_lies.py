"""A llama.cpp server that answers garbage, answers without end, or goes away: every request ends typed, and no process
is left."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf import server as llama_server
from steerserve.engines.gguf.child import OOM_SCORE
from steerserve.engines.gguf.messages import Serve
from steerserve.engines.gguf.server import LlamaServer, Lost
from tests import refusals
from tests.engines.llamas import Write, ask, loaded, refused

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def answering(begin: bytes, more: bytes = b"") -> AsyncIterator[LlamaServer]:
    """A client of a server that answers every request with `begin`, then with `more` until the client leaves."""

    async def answer(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            out.write(begin)
            await out.drain()
            while more:
                out.write(more)
                await out.drain()
        out.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    server = LlamaServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "key")
    try:
        yield server
    finally:
        await server.close()
        listening.close()


def body(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


async def written(server: LlamaServer, most: int = 3) -> list[str]:
    return [chunk.text async for chunk in server.complete([1, 2], most, 0, {})]


Asked = Callable[[LlamaServer], Any]
TOKENIZE: Asked = lambda server: server.tokenize("a", special=True)  # noqa: E731
EMBED: Asked = lambda server: server.embed([1])  # noqa: E731
SLOTS: Asked = lambda server: server.until_idle(0)  # noqa: E731
GARBAGE = [b"", b"<html>", b"null", b"5", b"[]", b"{}", b'{"tokens": 5}', b"\xff\xfe", b"[" * 9999]


@pytest.mark.parametrize("garbage", GARBAGE, ids=ascii)
async def test_an_answer_of_another_form_is_a_broken_engine(garbage: bytes) -> None:
    async with answering(body(garbage)) as server, asyncio.timeout(10):
        for asked in (TOKENIZE, EMBED, written):
            with pytest.raises(Lost):
                await asked(server)
        if garbage != b"[]":
            with pytest.raises(Lost):
                await SLOTS(server)
        with pytest.raises(Lost):
            await written(server)


@pytest.mark.parametrize(
    "value", [{"tokens": ["a"]}, {"tokens": [1.5]}, {"tokens": {}}, [{"embedding": "x"}], [{}]]
)
async def test_a_value_of_another_type_is_a_broken_engine(value: Any) -> None:
    async with answering(body(value)) as server, asyncio.timeout(10):
        for asked in (TOKENIZE, EMBED, SLOTS):
            with pytest.raises(Lost):
                await asked(server)


@pytest.mark.parametrize("vector", [[], [None], [1.0, None], [1e300]])
async def test_a_vector_that_is_not_finite_is_refused(vector: list[float | None]) -> None:
    async with answering(body([{"embedding": [vector]}])) as server:
        assert (await refusals.refused(server.embed([1]))).code == "NON_FINITE_LOGITS"


ENDLESS = {
    "a body": (HEAD + b"\r\n", b" " * 65536),
    "headers": (HEAD, b"X-Header: " + b"a" * 1000 + b"\r\n"),
    "a line": (HEAD + b"\r\ndata: ", b"a" * 65536),
    "events without text": (HEAD + b"\r\n", event(content="") * 100),
    "comments": (HEAD + b"\r\n", b": still here\n\n" * 100),
    "packed bytes": (HEAD + b"Content-Encoding: gzip\r\n\r\n", b"\0" * 65536),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(llama_server, "ANSWER_BYTES", 1 << 20)
    begin, more = ENDLESS[kind]
    async with answering(begin, more) as server, asyncio.timeout(20):
        tracemalloc.start()
        with pytest.raises(Lost):
            await written(server)
        if kind in ("a body", "headers", "packed bytes"):
            with pytest.raises(Lost):
                await server.tokenize("a", special=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20_000_000


async def test_more_tokens_than_asked_for_are_a_broken_engine() -> None:
    events = b"".join(event(content="a", tokens_predicted=n) for n in (1, 2, 3, 4))
    async with answering(HEAD + b"\r\n" + events) as server:
        with pytest.raises(Lost, match="more tokens"):
            await written(server, 3)


async def test_the_words_of_the_engine_are_shown_in_one_short_line() -> None:
    answer = body({"error": {"message": "a\x1b[31m\n" + "b" * 9000}}).replace(b"200 OK", b"500 No")
    async with answering(answer) as server:
        refusal = await refusals.refused(server.tokenize("a", special=True))
    assert refusal.code == "INTERNAL_ERROR"
    assert refusal.message.isprintable()
    assert len(refusal.message) < 300


# ------------------------------------------------------------- the whole engine

PROGRAM = '''#!{python}
"""A program with the options of llama-server and little else."""
import http.server, os, socket, sys

MODE = {mode!r}
if "--list-devices" in sys.argv or "--help" in sys.argv:
    sys.exit()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.say(b"{{}}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            self.say(b'{{"tokens": [1]}}')
        elif MODE == "garbage":
            self.say(b"garbage")
        elif MODE == "closes":
            self.server.socket.close()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            os.kill(os.getpid(), 9)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print("main: server is listening on http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
'''


def _oom_score(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text().strip()


@pytest.mark.parametrize("mode", ["garbage", "closes", "dies"])
async def test_an_engine_that_breaks_ends_with_its_requests_and_leaves_no_process(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(llama_process, "STOP_SECONDS", 0.5)
    program = tmp_path / "llama-server"
    program.write_text(PROGRAM.format(python=sys.executable, mode=mode))
    program.chmod(stat.S_IRWXU)
    async with loaded(write(), server_bin=str(program), embeddings=False) as (engine, _):
        wrapper = psutil.Process(engine.pid)
        processes = [wrapper, *wrapper.children(recursive=True)]
        # where memory runs out, the kernel ends the engine and not the service
        scores = {_oom_score(each.pid) for each in processes}
        assert scores == {OOM_SCORE}
        async with asyncio.timeout(20):
            refusals = await asyncio.gather(*(refused(ask(engine, "one")) for _ in range(3)))
            assert {refusal.code for refusal in refusals} == {"ENGINE_UNAVAILABLE"}
            assert (await engine.ended).startswith("the engine process")
        _, left = await asyncio.to_thread(psutil.wait_procs, processes, 10)
        assert not left


CHILDREN = {
    "garbage": "print('garbage', flush=True)",
    "too long a line": "print('x' * 200_000, flush=True)",
    "another address": 'print(\'{"url": "http://169.254.169.254/"}\', flush=True)',
    "a value of another type": "print('{\"url\": 5}', flush=True)",
}


@pytest.mark.parametrize("kind", CHILDREN)
async def test_a_process_that_answers_no_message_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    program = f"import sys, time\nsys.stdin.readline()\n{CHILDREN[kind]}\ntime.sleep(1000)\n"
    (tmp_path / "lying_child.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(llama_process, "MODULE", "lying_child")
    process = await llama_process.start()
    async with asyncio.timeout(20):
        refusal = await refusals.refused(process.serve(Serve("m", "key", 1, 1, 1, 1)))
    assert refusal.code == "MODEL_LOAD_FAILED"
    assert "invalid answer of the engine process" in refusal.message
    assert not psutil.pid_exists(process.pid)


async def test_a_process_whose_output_stays_open_is_seen_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that the engine left behind holds the pipes open."""
    program = (
        "import subprocess, sys\n"
        "subprocess.Popen(['sleep', '30'])\n"
        "print('{}', flush=True)\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "leaving_child.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(llama_process, "MODULE", "leaving_child")
    monkeypatch.setattr(llama_process, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(llama_process, "OUTPUT_SECONDS", 0.05)
    process = await llama_process.start()
    async with asyncio.timeout(20):
        assert await process.ended == "the engine process ended with code 3"
    for child in psutil.process_iter():
        with suppress(psutil.Error):
            if child.cmdline() == ["sleep", "30"] and child.ppid() == 1:
                child.kill()
    # now that nobody holds them, the pipes are closed
    transport: Any = process._child._transport  # type: ignore[attr-defined]
    async with asyncio.timeout(20):
        while not transport._finished:
            await asyncio.sleep(0)
