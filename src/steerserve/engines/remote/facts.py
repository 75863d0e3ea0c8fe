"""What a node says about itself, where an engine on it is reached, and whether it sees the same checkpoint as the
control plane."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from steerserve import __version__
from steerserve.engines import gpus as cards
from steerserve.engines.remote.checkpoints import own_caches, visible_files
from steerserve.rules.residency.gpus import Card


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. Memory is in MiB. A version is None where the package is not installed there. `cards_reason` says why
    there are no cards, or why some are missing. `caches` are the cache folders that the environment of the node names,
    by their variables."""

    name: str
    address: str
    steerserve: str
    python: str
    torch: str | None
    transformers: str | None
    cpu: str
    cores: int
    total_host_mb: int
    free_host_mb: int
    cards: tuple[Card, ...] = ()
    cards_reason: str | None = None
    caches: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contact:
    """One host that waits for its peer. It is made on the node, and says nothing secret. `certificate` is the one that
    the host shows, in PEM. `pid` is the process of the engine on the node."""

    host: str
    port: int
    certificate: str
    pid: int | None
    facts: NodeFacts


def read_facts(address: str) -> NodeFacts:
    """The facts of the node that this process runs on, which others reach at `address`. It blocks for milliseconds to
    seconds."""
    memory = psutil.virtual_memory()
    found, reason = cards.read()
    return NodeFacts(
        name=socket.gethostname(),
        address=address,
        steerserve=__version__,
        python=platform.python_version(),
        torch=cards.package_version("torch"),
        transformers=cards.package_version("transformers"),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        total_host_mb=memory.total >> 20,
        free_host_mb=memory.available >> 20,
        cards=tuple(found),
        cards_reason=reason,
        caches=own_caches(),
    )


def checkpoint_seen(path: str) -> str | None:
    """A digest of the names and sizes of all files below a folder, for a comparison with another node; None where the
    folder is not there or has no file. Hidden files do not count, because they hold the state of downloads."""
    folder = Path(path)
    lines = sorted(f"{file.size} {file.path}" for file in visible_files(folder, folder))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def why_barred(folder: str, ours: str | None, theirs: str | None) -> str | None:
    """Why a node must not serve the checkpoint in a folder, as a clause; None if it may. `ours` and `theirs` are the
    digests of the folder here and there."""
    if theirs is None:
        return f"it does not see {folder}"
    return None if theirs == ours else f"it has other files in {folder}"


def _cpu() -> str:
    """The name of the processor. Linux tells the name in a file only."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
