"""The process of one replica on its node, `python -m steerserve.engines.ray.replica_process`: the host of one engine.

Its actor tells it on the standard input what to do, and reads on the standard output where the engine can be reached.
The process ends when the link of the engine ends, when its input closes, and when its actor is gone. It imports neither
Ray nor the tensor library, so its log lines go to the log of the actor's process and nowhere else.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from typing import BinaryIO

import msgspec
import structlog

from steerserve.engines.ray.messages import ReplicaStarted, StartReplica
from steerserve.engines.remote.checkpoints import on_this_node
from steerserve.engines.remote.facts import why_barred
from steerserve.engines.remote.host import EngineHost
from steerserve.engines.remote.listener import ANY_PORT, NoPortIsFree
from steerserve.logs import setup as logging

log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG = 1


def main() -> None:
    # an actor that is killed takes this process with it, even while this process stands still
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = _answers()
    if not (line := sys.stdin.buffer.readline()):
        return
    order = msgspec.json.decode(line, type=StartReplica)
    logging.configure(order.log_level, order.log_format)
    asyncio.run(_serve_and_exit(order, answers))


def _answers() -> BinaryIO:
    """A private copy of the standard output. All other output of this process goes to the standard error."""
    ours = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return ours


async def _serve_and_exit(order: StartReplica, answers: BinaryIO) -> None:
    try:
        await _serve(order, answers)
    except Exception:
        log.exception("replica_failed")
    finally:
        # at once, because the end of the event loop would wait for the thread that reads the input
        os._exit(0)


async def _serve(order: StartReplica, answers: BinaryIO) -> None:
    host = EngineHost(order.certificate, order.log_level, order.log_format)
    orphaned = asyncio.ensure_future(asyncio.to_thread(_until_input_closes))
    name = socket.gethostname()
    for folder, digest in order.files.items():
        seen = await host.checkpoint_seen(on_this_node(folder, order.caches))
        if (barred := why_barred(folder, digest, seen)) is not None:
            _say(answers, ReplicaStarted(barred=barred, name=name))
            return
    ports = range(order.ports[0], order.ports[1] + 1) if order.ports else ANY_PORT
    try:
        contact = await host.open(order.address, ports)
    except NoPortIsFree as error:
        why = f"{error} on {name} (ENGINE_PORTS)"
        log.warning("replica_not_opened", reason=why)
        _say(answers, ReplicaStarted(error=why))
        return
    except Exception as error:
        log.exception("replica_not_opened")
        _say(answers, ReplicaStarted(error=f"its engine does not start ({type(error).__name__})"))
        return
    _say(answers, ReplicaStarted(contact))
    ended = asyncio.ensure_future(host.ended())
    await asyncio.wait([ended, orphaned], return_when=asyncio.FIRST_COMPLETED)
    await host.close()
    log.info("replica_ended", reason=ended.result() if ended.done() else "its actor has ended")


def _until_input_closes() -> None:
    while os.read(0, 1 << 10):
        pass


def _say(answers: BinaryIO, message: ReplicaStarted) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
