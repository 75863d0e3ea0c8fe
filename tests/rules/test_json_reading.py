"""Other threads go on while JSON is read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from steerserve.rules import json_faults, json_reading
from steerserve.rules.steering import documents

NUMBERS = b"[" + b",".join([b"0.12345678901234567"] * 100_000) + b"]"


@pytest.fixture
def _quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_quick_turns")
@pytest.mark.parametrize(
    "read",
    [
        json_reading.decode,
        documents.read_json,
        documents.check_once,
        lambda text: json_faults.fault_of(text + b"]"),
    ],
)
def test_other_threads_have_turns_while_numbers_are_read(read: Callable[[bytes], object]) -> None:
    reading = threading.Thread(target=read, args=(NUMBERS,))
    reading.start()
    begun = last = time.perf_counter()
    longest = 0.0
    while reading.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (time.perf_counter() - begun) / 2


@pytest.mark.parametrize("text", [b"1e999", b"[-1e999]", b"NaN", b"[1] 2", b'"\xff"'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        json_reading.decode(text)
