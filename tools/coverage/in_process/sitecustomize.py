"""Counts the lines that a Python process runs. Python imports this module at its start, because PYTHONPATH names this
folder.

PYTHONPATH reaches every process of a service, because it is one of the few variables that the processes for untrusted
input keep. coverage.py itself counts in forked processes (`patch` in pyproject.toml). Most of the processes end by
`os._exit`, which here writes the counts first, or by SIGKILL. Here `os.kill` and `Process.kill` send another signal
before SIGKILL; a process that gets it writes its counts and then kills itself.
"""

import asyncio.subprocess
import contextlib
import os
import select
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Never

try:
    import coverage
except ImportError:  # an environment of its own, which a test made for a client
    coverage = None

ROOT = Path(__file__).parents[3]
WRITE = signal.SIGURG
"""A signal that a process without a handler ignores."""
WRITE_MILLISECONDS = 1000
"""The longest time that a process may take to write its counts before it is killed without them."""

_kill, _exit = os.kill, os._exit
_writing = threading.Lock()
"""Held from the moment when a thread begins to write the counts until the end of the process."""


def _write() -> None:
    with contextlib.suppress(
        Exception
    ):  # such as the limits of memory and open files of this process
        if measured := coverage.Coverage.current():
            measured.stop()
            measured.save()


def _exit_counted(status: int) -> Never:
    with _writing:
        _write()
        _exit(status)


def _write_and_die(number: int, frame: FrameType | None) -> None:
    if _writing.acquire(blocking=False):
        _write()
        _kill(os.getpid(), signal.SIGKILL)


def _renew_lock() -> None:
    global _writing
    _writing = threading.Lock()


def _has_written(pid: int) -> bool:
    """Let a process write its counts, and say whether it has ended. False at once for a process that has no handler
    for WRITE, or is stopped, or is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        has_handler = int(fields.get("SigCgt", "0"), 16) >> (WRITE - 1) & 1
        if not has_handler or fields["State"][0] in "TtZ":
            return False
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        _kill(pid, WRITE)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(WRITE_MILLISECONDS))
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _kill_counted(pid: int, number: int) -> None:
    """`os.kill`, whose SIGKILL lets the process write its counts."""
    is_other = pid > 0 and pid != os.getpid()
    if not (number == signal.SIGKILL and is_other and _has_written(pid)):
        _kill(pid, number)


def _kill_child(process: asyncio.subprocess.Process) -> None:
    """`asyncio.subprocess.Process.kill`, which an event loop in C does not do with `os.kill`."""
    if process.returncode is not None or not _has_written(process.pid):
        process._transport.kill()


if coverage:
    os.environ["COVERAGE_PROCESS_START"] = str(ROOT / "pyproject.toml")
    os.environ["COVERAGE_FILE"] = str(ROOT / ".coverage")
    coverage.process_startup()
    signal.signal(WRITE, _write_and_die)
    os.register_at_fork(after_in_child=_renew_lock)
    os._exit = _exit_counted
    os.kill = _kill_counted
    asyncio.subprocess.Process.kill = _kill_child
