"""How much memory a call takes at most."""

import tracemalloc
from collections.abc import Callable


def stays_below(bound: int, call: Callable[[], object]) -> bool:
    """Whether one of three calls never held `bound` bytes more than before it.

    The memory of all threads of this process is measured, and a first call can import modules: a call that is above
    `bound` by itself is above it each time.
    """
    for _ in range(3):
        tracemalloc.start()
        try:
            call()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        if peak < bound:
            return True
    return False
