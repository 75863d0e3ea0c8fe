"""Files of directions are read in a process of their own, and a file that is too costly ends only this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerserve.engines.sandbox import directions
from steerserve.engines.sandbox.directions import read_file
from steerserve.errors import Refusal
from steerserve.files.directions.probes import PROBES
from steerserve.files.directions.stored import DirectionFile
from steerserve.files.directions.vectors import VECTORS
from steerserve.rules.steering.vector import ReadOptions
from tests.files.directions.files import direction, torch_file

FILE = DirectionFile("v.pt", torch_file({2: direction(2), 4: direction(4)}))
PROGRAM = "import os, time; from steerserve.engines.sandbox.pool_process import serve; "
SLEEPER = PROGRAM + "serve(lambda body: time.sleep(60), 600)"
DYING = PROGRAM + "serve(lambda body: os._exit(1), 600)"


TRAP = Path("/tmp/steerserve-file-trap")


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (TRAP,)


def is_sprung() -> bool:
    return TRAP.exists()


async def test_what_the_process_reads_is_what_the_formats_read() -> None:
    read = await read_file(VECTORS, FILE, ReadOptions())
    assert read == VECTORS.read(FILE, ReadOptions())
    assert [one.layer for one in read.directions] == [2, 4]


async def test_a_refusal_has_the_code_and_the_details_of_its_noun() -> None:
    for formats, code in ((VECTORS, "INVALID_VECTOR"), (PROBES, "INVALID_PROBE")):
        with pytest.raises(Refusal) as refused:
            await read_file(formats, DirectionFile("v.pt", torch_file({1: Trap()})), ReadOptions())
        assert (refused.value.code, refused.value.details) == (code, {"file": "v.pt"})
        assert "nothing was executed" in refused.value.message
    assert not is_sprung()


@pytest.mark.parametrize(
    ("program", "seconds", "why"),
    [(SLEEPER, 0.5, "takes longer than 0.5 s"), (DYING, 60.0, "memory")],
)
async def test_a_file_that_ends_its_process_or_takes_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, program: str, seconds: float, why: str
) -> None:
    monkeypatch.setattr(directions, "READ_SECONDS", seconds)
    monkeypatch.setattr(directions, "COMMAND", ("-c", program))
    with pytest.raises(Refusal, match=why) as refused:
        await read_file(VECTORS, FILE, ReadOptions())
    assert refused.value.code == "INVALID_VECTOR"
