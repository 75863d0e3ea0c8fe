"""A PostgreSQL server of the tests' own, which they may stop and stall."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import psutil

HERE = "127.0.0.1"
DATABASE = "postgres"


class Server:
    """A server with an empty database.

    Attributes:
        port: where it listens. Nothing else may connect to it than this machine, and no password is asked for.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        with socket.socket() as unused:
            unused.bind((HERE, 0))
            self.port: int = unused.getsockname()[1]

    def url(self, port: int | None = None) -> str:
        return f"postgresql://postgres@{HERE}:{port or self.port}/{DATABASE}"

    def make(self) -> None:
        options = ("--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8")
        self._run("initdb", "--pgdata", str(self._folder / "data"), *options)

    def start(self) -> None:
        options = f"-p {self.port} -h {HERE} -k {self._folder} -F"
        log = str(self._folder / "log")
        self._run(
            "pg_ctl", "start", "-w", "-D", str(self._folder / "data"), "-l", log, "-o", options
        )

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self._folder / "data"))

    def stall(self) -> None:
        """Let no process of the server run until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        first = psutil.Process(
            int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        )
        for process in (first, *first.children()):
            process.send_signal(number)

    def _run(self, program: str, *arguments: str) -> None:
        # the server does not run as root
        user: dict[str, Any] = {} if os.getuid() else {"user": _account(), "extra_groups": []}
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            **user,
        )


def _account() -> str:
    """An account without rights."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def programs() -> Path | None:
    """The folder of the programs of PostgreSQL; None where they are not installed."""
    found = [Path(place).resolve().parent for place in (shutil.which("initdb"),) if place]
    found += [Path(place).parent for place in sorted(glob("/usr/lib/postgresql/*/bin/initdb"))]
    return found[-1] if found else None


@contextmanager
def serving(folder_of_programs: Path) -> Iterator[Server]:
    # a socket of the server has a short path
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if not os.getuid():
            shutil.chown(folder, _account())
        server = Server(folder_of_programs, Path(folder))
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.go_on()
            server.stop()
