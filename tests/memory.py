"""How much memory a call takes at most."""

import os
import signal
import tracemalloc
import warnings
from collections.abc import Callable

CHILD_SECONDS = 60


def stays_below(bound: int, call: Callable[[], object]) -> bool:
    """Whether a call never holds `bound` bytes more than before it.

    The memory of all threads is measured, and services of other tests have threads in this process, which read files in
    large pieces. So the call is measured in a fork of this process, which has one thread. It is made once before, because
    a first call can import modules.
    """
    call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        child = os.fork()
    if not child:
        _measure(bound, call)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1), f"the measurement ended with {code}"
    return code == 0


def _measure(bound: int, call: Callable[[], object]) -> None:
    """End this process with 0 where the call stays below the bound, with 1 where it does not, or with 2 if it fails."""
    code = 2
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        tracemalloc.start()
        call()
        _, peak = tracemalloc.get_traced_memory()
        code = int(peak >= bound)
    finally:
        os._exit(code)
