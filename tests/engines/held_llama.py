"""The llama.cpp process with one addition: SIGUSR1 holds the thread to which it is sent, until the thread gets SIGUSR2.

All other threads go on. So a test can hold the decoding of the real engine while its HTTP threads answer.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

import psutil

from steerserve.engines.gguf.child import main

MODULE = "tests.engines.held_llama"
BUSY_SECONDS = 0.1
_LIBC = ctypes.CDLL(None)


def decoder(pid: int) -> int:
    """The thread that decodes: the first one of a busy process that has used the processor for BUSY_SECONDS."""
    before = _used(pid)
    while True:
        gains = {thread: used - before.get(thread, 0.0) for thread, used in _used(pid).items()}
        busiest = max(gains, key=lambda thread: gains[thread])
        if gains[busiest] >= BUSY_SECONDS:
            return busiest
        time.sleep(0.01)


def hold(pid: int, thread: int) -> None:
    _send(pid, thread, signal.SIGUSR1)


def release(pid: int, thread: int) -> None:
    _send(pid, thread, signal.SIGUSR2)


def _used(pid: int) -> dict[int, float]:
    """The seconds for which each thread has used the processor."""
    return {thread.id: thread.user_time for thread in psutil.Process(pid).threads()}


def _send(pid: int, thread: int, number: int) -> None:
    if _LIBC.tgkill(pid, thread, number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _handle(number: int, function: object) -> None:
    """Let a function of the C library handle a signal, in the thread that gets the signal and without the interpreter."""
    _LIBC.signal(number, ctypes.cast(function, ctypes.c_void_p))  # type: ignore[arg-type]


if __name__ == "__main__":
    _LIBC.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    _handle(signal.SIGUSR1, _LIBC.pause)
    _handle(signal.SIGUSR2, _LIBC.getpid)
    main()
