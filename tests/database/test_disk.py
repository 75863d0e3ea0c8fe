"""The database on a small disk of its own: full, and read-only. These tests need the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steerserve.database import faults, watch
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.errors import CannotStart, Refusal
from steerserve.nouns.circuits.rules import document as rules
from steerserve.nouns.circuits.store import CircuitStore
from steerserve.nouns.profiles.store import ProfileStore
from tests.database.conftest import opened
from tests.database.test_migrations import MODEL, migrate
from tests.refusals import refused

CIRCUIT = {
    "name": "rain",
    "saes": [{"layer": 1}],
    "members": [{"layer": 1, "feature": {"feature_idx": 1, "strength": 1}}],
    "unknown": "x" * 50_000,
}
LARGE = dict.fromkeys(range(1000), 1.0)


def mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if mount("-t", "tmpfs", "-o", "size=2m", "none", str(folder)):
        pytest.skip("this process may not mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def url(disk: Path) -> str:
    return f"sqlite+aiosqlite:///{disk / 'steerserve.db'}"


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def remove_copies(disk: Path) -> None:
    """Remove the copies of the database that attempts to upgrade it have left."""
    for copy in disk.glob("*.0001-*"):
        copy.unlink()


async def test_a_full_disk_refuses_writes_until_there_is_room_again(
    url: str, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.0)
    async with opened(url) as database:
        documents = ProfileStore(database)
        await documents.add_profile(name="before", steering={})
        filler = fill(disk)
        for name in ("large", "again"):
            refusal = await refused(documents.add_profile(name=name, steering=LARGE))
            assert refusal.code == "DATABASE_UNAVAILABLE"
            assert await database.fault() == faults.FULL
        assert [row.name for row in (await documents.page(200))[0]] == ["before"]
        filler.unlink()
        assert await database.fault() is None
        await documents.add_profile(name="large", steering=LARGE)
    async with opened(url) as again:
        assert [row.name for row in (await ProfileStore(again).page(200))[0]] == ["before", "large"]


async def test_documents_are_deleted_on_a_full_disk(url: str, disk: Path) -> None:
    async with opened(url) as database:
        documents, circuits = ProfileStore(database), CircuitStore(database)
        rows = [await documents.add_profile(name=f"{i}", steering=LARGE) for i in range(3)]
        circuit = await circuits.add("rain", rules.imported(CIRCUIT), 1.0)
        fill(disk)
        with pytest.raises(Refusal):
            await documents.add_profile(name="one too many", steering=LARGE)
        for row in rows:
            await documents.remove(row.id)
        await circuits.remove(circuit.id)
        assert (await documents.page(200))[1] == (await circuits.page(200))[1] == 0


async def test_a_disk_that_fills_during_an_upgrade_changes_nothing(url: str, disk: Path) -> None:
    migrate(url, "0001", MODEL)
    filler = fill(disk)
    is_open, sentences = False, []
    while not is_open:
        remove_copies(disk)
        with filler.open("r+b") as file:
            file.truncate(filler.stat().st_size - 16384)
        database = Database(url)
        try:
            await database.open()
            is_open = True
        except CannotStart as refused:
            sentences.append(str(refused))
    # while there is no room for SQLite's own files either, SQLite reports an error of the disk
    assert all(sentence.startswith(f"cannot use the database {disk}") for sentence in sentences)
    assert any("free some space on its disk" in sentence for sentence in sentences)
    assert [row.name for row in await Catalog(database).models()] == ["old"]
    await database.close()


async def test_a_read_only_disk_ends_the_start_in_one_sentence(url: str, disk: Path) -> None:
    database = Database(url)
    await database.open()
    await database.close()
    assert mount("-o", "remount,ro", str(disk)) == 0
    with pytest.raises(CannotStart, match="check the file and its folder") as refused:
        await database.open()
    assert str(disk) in str(refused.value)
