"""What the way between an engine and the control plane costs: `python -m benchmarks.transport`.

Three ways are measured in turns: the socket pair of an engine on this machine, the connection with mutual TLS to a host
in another process, and calls of a Ray actor, where Ray is installed. A small program stands in for the engine: it
answers each command with frames as large as those of a step, and writes the time into each. All processes run on this
machine, so they read the same clock, and no time on a network is included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import machine
from benchmarks.kept import Kept
from steerserve.engines.checkpoint.process import FrameReader, FrameWriter
from steerserve.engines.remote import certificates
from steerserve.engines.remote.facts import Contact
from steerserve.engines.remote.host import EngineHost
from steerserve.engines.remote.link import connect
from steerserve.messages import LENGTH, endings
from steerserve.rules.residency.heartbeat import Activity, Sign

FRAME = 160
"""Bytes of a frame: about the size of a step of four rows."""
TOKENS = 50
STEP_SECONDS = 0.005
BURST = 5000
_COMMAND = struct.Struct(">Id")
_STAMP = struct.Struct(">d")

Ends = tuple[FrameReader, FrameWriter]
Way = Callable[[], AbstractAsyncContextManager[Ends]]


class EchoProcess:
    """The process that stands in for an engine. Satisfies `EngineProcess`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid: int | None = process.pid
        self.exitcode: int | None = None
        self._count = 0

    def kill(self) -> None:
        self._process.kill()

    async def wait(self, seconds: float | None = None) -> None:
        self.exitcode = await asyncio.to_thread(self._process.wait, seconds)

    def sign(self) -> Sign:
        self._count += 1
        return Sign(Activity.IDLE, self._count)

    def reason(self) -> str:
        return endings.reason(self.exitcode)


async def start() -> tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]:
    """Start the program that stands in for an engine."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.to_thread(_popen, theirs.fileno())
    return EchoProcess(process), *await asyncio.open_connection(sock=ours)


def _popen(link: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "benchmarks.transport", "--echo", str(link)]
    return subprocess.Popen(program, pass_fds=[link])


def echo(link: socket.socket) -> None:
    """Answer each command with as many frames as it asks for, a step apart."""
    with link, link.makefile("rb") as commands:
        while header := commands.read(LENGTH.size):
            count, step = _COMMAND.unpack(commands.read(LENGTH.unpack(header)[0]))
            for _ in range(count):
                body = _STAMP.pack(time.monotonic()).ljust(FRAME, b"\0")
                link.sendall(LENGTH.pack(FRAME) + body)
                if step:
                    time.sleep(step)


# ---------------------------------------------------------------- the ways


@asynccontextmanager
async def over_socket_pair() -> AsyncIterator[Ends]:
    process, reader, writer = await start()
    try:
        yield reader, writer
    finally:
        writer.close()
        await process.wait()


@asynccontextmanager
async def over_tls() -> AsyncIterator[Ends]:
    identity = certificates.new_identity()
    host = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "benchmarks.transport", "--host"],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert host.stdin
    assert host.stdout
    host.stdin.write(json.dumps(identity.certificate).encode() + b"\n")
    contact = msgspec.json.decode(await host.stdout.readline(), type=Contact)
    process, reader, writer = await connect(contact, identity)
    try:
        yield reader, writer
    finally:
        process.kill()
        await process.wait()
        await host.wait()


async def serve_host() -> None:
    """One host, as a process on another node would run it."""
    host = EngineHost(json.loads(sys.stdin.readline()), "WARNING", "json", start=start)
    print(msgspec.json.encode(await host.open("127.0.0.1")).decode(), flush=True)
    await host.ended()


# ---------------------------------------------------------------- measuring


async def answers(ends: Ends, count: int, step: float) -> list[tuple[float, float]]:
    """When each frame of an answer was written, and when it was read."""
    reader, writer = ends
    command = _COMMAND.pack(count, step)
    writer.write(LENGTH.pack(len(command)) + command)
    await writer.drain()
    times = []
    for _ in range(count):
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        body = await reader.readexactly(size)
        times.append((_STAMP.unpack_from(body)[0], time.monotonic()))
    return times


async def measure(ends: Ends, requests: int) -> dict[str, float]:
    """The costs of one way in one round, in milliseconds and microseconds."""
    first, tokens = [], []
    used = time.process_time()
    for _ in range(requests):
        began = time.monotonic()
        times = await answers(ends, TOKENS, STEP_SECONDS)
        first.append(times[0][1] - began)
        tokens += [read - written for written, read in times[1:]]
    used = time.process_time() - used
    began = time.monotonic()
    await answers(ends, BURST, 0)
    return {
        "first_token_ms": statistics.median(first) * 1e3,
        "token_ms": statistics.median(tokens) * 1e3,
        "token_p99_ms": machine.quantile(tokens, 0.99) * 1e3,
        "frames_per_s": BURST / (time.monotonic() - began),
        "processor_us_per_frame": used / (requests * TOKENS) * 1e6,
    }


async def compare(ways: dict[str, Way], rounds: int, requests: int) -> dict[str, Any]:
    """Measure all ways in turns. Each figure is the median of its rounds, with the least and the greatest."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            async with way() as ends:
                await answers(ends, TOKENS, 0)
                figures[name].append(await measure(ends, requests))
            print(f"round {number + 1}, {name}: {_short(figures[name][-1])}", flush=True)
    return {
        name: {
            key: msgspec.to_builtins(machine.Spread.of([one[key] for one in taken]))
            for key in taken[0]
        }
        for name, taken in figures.items()
    }


def added(figures: dict[str, Any]) -> dict[str, Any]:
    """What each way costs beyond the socket pair, from the medians."""
    base = figures["socket pair"]
    return {
        name: {
            key: own[key]["median"] - base[key]["median"]
            for key in ("first_token_ms", "token_ms", "processor_us_per_frame")
        }
        for name, own in figures.items()
        if own is not base
    }


def _short(figures: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.3g}" for key, value in figures.items())


async def run(rounds: int, requests: int) -> dict[str, Any]:
    ways: dict[str, Way] = {"socket pair": over_socket_pair, "TLS": over_tls}
    if find_spec("ray"):
        # this module imports Ray, which is an extra
        ways["Ray actor"] = import_module("benchmarks.transport_ray").over_ray
    figures = await compare(ways, rounds, requests)
    return {
        "frame_bytes": FRAME,
        "step_seconds": STEP_SECONDS,
        "tokens": TOKENS,
        "requests": requests,
        "rounds": rounds,
        "figures": figures,
        "added": added(figures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/results")
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.echo is not None:
        echo(socket.socket(fileno=wanted.echo))
    elif wanted.host:
        uvloop.run(serve_host())
    else:
        kept = Kept("transport", wanted.out)
        found = uvloop.run(run(wanted.rounds, wanted.requests))
        print(json.dumps(found["added"], indent=1))
        kept.end(found)


if __name__ == "__main__":
    main()
