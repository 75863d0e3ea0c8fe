"""Starts an engine process from a fork server that has imported the engine's modules before, so that a start takes a
fraction of a second.

The process gets one end of a socket pair, and ends when the other end closes.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

PRELOAD = "steerserve.engine.worker.process.preload"
ENGINE = "steerserve.engine.worker.process.loop"
TOKENIZER = "steerserve.engine.worker.process.tokenizing"
NAMES = {ENGINE: "steer-engine", TOKENIZER: "steer-tokenizer"}
"""The names of the processes in `ps` and `top`, which show 15 characters."""

_SECRETS = frozenset(
    {"API_KEYS", "DATABASE_URL", "HUB_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
)
"""Environment variables that no engine may see, in any case of letters, because the code of a repository may run in an
engine."""


def context() -> ForkServerContext:
    """The context of the fork server. The fork server starts with the first process, and imports the modules of the
    engine."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([PRELOAD])
    return server


def start(
    ctx: ForkServerContext, module: str, *args: Any
) -> tuple[ForkServerProcess, socket.socket]:
    """A started process that runs `main` of a module of the engine, and our end of its socket. Blocks while the fork
    server still imports.

    The secrets are removed from the environment of this process for good, because the fork server and every engine get
    a copy of that environment. The settings have been read before.
    """
    for name in [name for name in os.environ if name.upper() in _SECRETS]:
        del os.environ[name]
    ours, theirs = socket.socketpair()
    with theirs:
        process = ctx.Process(target=_main, args=(module, theirs, *args), daemon=True)
        process.start()
    ours.setblocking(False)
    return process, ours


def _main(module: str, link: socket.socket, *args: Any) -> None:
    """Run the module; called in the new process. The module is imported by its name, because this module must never
    import the tensor library."""
    with contextlib.suppress(OSError):  # only Linux names a process in this way
        Path("/proc/self/comm").write_text(NAMES[module])
    importlib.import_module(module).main(link, *args)
