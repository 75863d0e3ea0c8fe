"""What a token of one streamed request costs outside the model: `python -m benchmarks.token_costs`.

All figures are processor time. That of the control plane is of its whole process, over requests through HTTP. That of
the engine is of its main thread, in steps of one row in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import streams
from benchmarks.kept import Kept
from benchmarks.machine import Spread
from benchmarks.models import sized
from benchmarks.plans import CACHE
from benchmarks.service import load, running
from steerserve import messages as m
from steerserve.logs import setup as logs
from steerserve.worker import memory
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.process.loop import Worker
from steerserve.worker.process.wire import Wire
from steerserve.worker.rows import sampling
from steerserve.worker.rows.text import TextStream

SIZE = "91m"
TOKENS, WARM, REQUESTS = 500, 20, 3
SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 1, "max_tokens": TOKENS}
PARTS: dict[str, tuple[Any, str]] = {
    "the draw": (sampling, "sample"),
    "the text": (TextStream, "push"),
    "the message": (Wire, "send"),
}
"""Parts of a step outside the pass, each a function of its owner."""
PASS = "the pass"


def _serve(link: socket.socket, told: Connection) -> None:
    """Run an engine on the link until its other end closes; then tell the processor time of each step, by part."""
    spent: defaultdict[str, float] = defaultdict(float)
    steps: list[dict[str, float]] = []

    def timed(owner: Any, function: str, part: str) -> None:
        work: Callable[..., Any] = getattr(owner, function)

        def measured(*given: Any, **named: Any) -> Any:
            since = time.thread_time()
            try:
                return work(*given, **named)
            finally:
                spent[part] += time.thread_time() - since

        setattr(owner, function, measured)

    for part, (owner, function) in {**PARTS, PASS: (Checkpoint, "decode_step")}.items():
        timed(owner, function, part)
    turn = Worker._turn

    def counted(worker: Worker) -> None:
        spent.clear()
        since = time.thread_time()
        turn(worker)
        if spent[PASS]:
            whole = time.thread_time() - since
            steps.append({**spent, "outside the pass": whole - spent[PASS]})

    Worker._turn = counted  # type: ignore[method-assign, assignment]
    logs.configure("WARNING", "console")
    memory.keep_freed()
    with link, Wire(link) as wire, torch.inference_mode():
        Worker(wire).run()
    told.send(steps)


def of_engine(checkpoint: Path) -> dict[str, Any]:
    """The processor time of the steps of one row, in seconds, by part."""
    ours, theirs = socket.socketpair()
    context = get_context("spawn")
    hears, tells = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, tells))
    process.start()
    theirs.close()
    with ours:
        events = _events(ours)
        fields: dict[str, Any] = {"quantization": "FP16", "trust_remote_code": False, "threads": 0}
        ours.sendall(
            m.frame(m.Load(1, str(checkpoint), **fields, kv_cache_mb=256, min_context=1024))
        )
        while not isinstance(answer := next(events), m.Loaded):
            assert not isinstance(answer, m.Refused), answer
        prompts = [m.Tokens(list(range(100, 116)))]
        goal = m.Generate(sampling=m.Sampling(**SAMPLING))
        ours.sendall(m.frame(m.Request(id=2, goal=goal, prompts=prompts, plan=m.Follow())))
        while not _ends(answer := next(events)):
            assert not isinstance(answer, m.Refused), answer
        ours.shutdown(socket.SHUT_RDWR)  # the file of the events keeps the socket open
    steps = hears.recv()[WARM:]
    process.join()
    names = (*PARTS, "outside the pass", PASS)
    return {name: asdict(Spread.of([step.get(name, 0.0) for step in steps])) for name in names}


def _events(link: socket.socket) -> Iterator[m.Event]:
    with link.makefile("rb") as file:
        while head := file.read(m.LENGTH.size):
            yield m.decode_event(file.read(m.LENGTH.unpack(head)[0]))


def _ends(event: m.Event) -> bool:
    return isinstance(event, m.Stepped) and any(
        isinstance(one, m.Piece) and one.finish for one in event.outcomes
    )


async def of_control_plane(checkpoint: Path) -> dict[str, Any]:
    """The processor time of the control plane for a token, in seconds, request by request."""
    with tempfile.TemporaryDirectory() as scratch:
        async with running(Path(scratch) / "home") as client:
            await load(client, checkpoint, SIZE)
            (process,) = (one for one in psutil.Process().children() if "serve" in one.cmdline())
            body = {"model": SIZE, "prompt": "hello there my friend", **SAMPLING}
            port = client.base_url.port
            assert port is not None
            request = streams.Request(port, "/v1/completions", body)
            found = []
            for _ in range(REQUESTS + 1):
                before = process.cpu_times()
                answer = await streams.ask(request)
                after = process.cpu_times()
                spent = after.user + after.system - before.user - before.system
                found.append(spent / answer.tokens)
    return asdict(Spread.of(found[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of models")
    given = parser.parse_args()
    kept = Kept("token-costs")
    checkpoint = sized(SIZE, given.cache / SIZE)
    engine = of_engine(checkpoint)
    control = asyncio.run(of_control_plane(checkpoint))
    together = engine["outside the pass"]["median"] + control["median"]
    costs = {
        "size": SIZE,
        "tokens": TOKENS,
        "control_plane_s": control,
        "engine_s": engine,
        "together_s": together,
    }
    print(json.dumps(costs, indent=2))
    kept.end({"token-costs": costs})


if __name__ == "__main__":
    main()
