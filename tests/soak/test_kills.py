"""Killing the service at random moments of random writes: what was acknowledged is there again, and nothing half."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.soak import watching
from tests.soak.ledger import Ledger
from tests.soak.watching import Process, sizes, stressed

SEED = 11
MODELS = 4
CALM_WRITES = 12
"""A round writes up to so many times in peace; then the kill comes within KILL_SECONDS of further writes."""
KILL_SECONDS = 0.4
MOST_WRITES = 2000


@dataclass(frozen=True, slots=True)
class Kills:
    """How often the service is killed, and in how many of the first rounds loads are waited for."""

    rounds: int
    patient: int


def write_on(served: Process, ledger: Ledger, count: int) -> None:
    for _ in range(count):
        ledger.write(served.http)


def kill_amid_writes(served: Process, ledger: Ledger, draw: random.Random) -> None:
    write_on(served, ledger, draw.randrange(CALM_WRITES))
    ledger.prepare(served.http)
    killing = threading.Timer(draw.uniform(0, KILL_SECONDS), served.process.kill)
    killing.start()
    with pytest.raises(httpx2.TransportError):
        write_on(served, ledger, MOST_WRITES)
    killing.join()
    served.wait()


def check_database(home: Path) -> None:
    with closing(sqlite3.connect(home / "steerserve.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@sizes(Kills(2, 1), Kills(30, 15), seconds=900)
@pytest.mark.soak
def test_what_was_acknowledged_survives_a_kill(
    tmp_path: Path, folders: dict[str, Path], size: Kills
) -> None:
    copies = [Path(shutil.copytree(folders["red"], tmp_path / f"m{n}")) for n in range(MODELS)]
    draw = random.Random(SEED)
    ledger, home, ends = Ledger(copies, draw), tmp_path / "home", []
    for number in range(size.rounds):
        print(f"seed {SEED}, round {number}: {ledger.unsure and ledger.unsure[0]} was under way")
        ledger.is_patient = number < size.patient
        with stressed(home) as served:
            ledger.compare(served.http)
            kill_amid_writes(served, ledger, draw)
            ends.append(watching.until_ended(served.process.pid))
    with stressed(home) as served:
        ledger.compare(served.http)
    check_database(home)
    print(
        f"{size.rounds} kills amid {dict(ledger.statuses)}, {len(ledger.leases)} leases forgotten; "
        f"engines gone after at most {max(ends):.2f} s"
    )
    assert ledger.leases, "nothing was leased"
