"""Memory that requests took goes back to the system."""

from __future__ import annotations

import platform
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.app.test_starting import run_program
from tests.service import Running

HELD_MIB = 16.0
"""The most freed memory that the heaps may keep after the burst. It takes 48 MiB."""

A_BURST_WHILE_THE_SERVICE_STARTS = """
import ctypes, os, threading
from steerserve.app import serve
from steerserve.app.service import Service
from steerserve.settings import Settings

NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
THREADS = 6
turn, all_had_it = threading.Lock(), threading.Barrier(THREADS)

def burst():
    with turn:
        blocks = [bytearray(4000) for _ in range(2000)]
        blocks.clear()
    all_had_it.wait()

async def burst_and_end(service):
    body = bytearray(8_000_000)
    del body
    threads = [threading.Thread(target=burst) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("held", library.mallinfo2().fordblks, flush=True)
    os._exit(0)

Service.open = burst_and_end
if __name__ == "__main__":
    serve.run(Settings())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heaps of glibc are measured")
def test_threads_keep_little_of_the_memory_that_they_freed(tmp_path: Path) -> None:
    """A large block is freed first: the C library would then keep twice its size in the heap of each thread."""
    printed = run_program(tmp_path, A_BURST_WHILE_THE_SERVICE_STARTS).split()
    held = int(printed[printed.index("held") + 1]) / (1 << 20)
    assert held < HELD_MIB


def test_the_paths_of_refused_requests_are_not_kept(shared: Running) -> None:
    """The standard library keeps the last 128 URLs that it has split, and a path may have 64 KiB."""
    host = shared.url.removeprefix("http://")
    long = "x" * 10_000
    before = urlsplit.cache_info()
    for method, path, status in (
        ("GET", f"/api/{long}", 404),
        ("GET", f"/v1/{long}", 404),
        ("GET", f"/api/models/{long}", 422),
        ("GET", f"/api/saes/{long}", 404),
        ("PUT", f"/api/profiles/{long}/export", 405),
    ):
        # another client would split the URL too
        with closing(HTTPConnection(host)) as client:
            client.request(method, path)
            assert client.getresponse().status == status
    assert urlsplit.cache_info() == before
