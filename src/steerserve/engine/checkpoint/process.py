"""Starting an engine process from a fork server that has only imported, so that a start takes a fraction of a second.

The process gets one end of a socket pair; it ends when that closes.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
from multiprocessing.context import ForkServerContext, ForkServerProcess

PRELOAD = "steerserve.engine.worker.process.preload"

_SECRETS = frozenset(
    {"API_KEYS", "DATABASE_URL", "HUB_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
)
"""Variables that no engine may see, in any case of letters: a repository's own code may run there."""


def context() -> ForkServerContext:
    """The fork server's context. Its server starts with the first process, and imports what engines need."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([PRELOAD])
    return server


def start(
    ctx: ForkServerContext, log_level: str, log_format: str
) -> tuple[ForkServerProcess, socket.socket]:
    """A started engine process and our end of its socket. Blocks while the fork server still imports.

    The secrets of the environment, which the settings were read from before, are removed from this process's own for
    good: the fork server is started with it, and every engine shows what the fork server was started with.
    """
    for name in [name for name in os.environ if name.upper() in _SECRETS]:
        del os.environ[name]
    ours, theirs = socket.socketpair()
    with theirs:
        process = ctx.Process(target=_main, args=(theirs, log_level, log_format), daemon=True)
        process.start()
    ours.setblocking(False)
    return process, ours


def _main(link: socket.socket, log_level: str, log_format: str) -> None:
    """Runs in the new process. The engine is imported by name: this module must never import the tensor library."""
    importlib.import_module("steerserve.engine.worker.process.loop").main(
        link, log_level, log_format
    )
