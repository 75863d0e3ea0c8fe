"""Downloads of SAEs beside what else goes on: reading that is given up, attaches, deletes, the end of the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from steerserve import messages as m
from steerserve.control.saes.downloads import SaeDownloads
from steerserve.control.saes.events import SaeDownloadComplete, SaeDownloadError
from steerserve.control.saes.plan import SaeRequest
from steerserve.database.catalog import SaeRow
from steerserve.files.folder import CommitFolder
from steerserve.hub import client, downloads
from steerserve.hub.child import Downloaders
from steerserve.hub.described import Repository
from steerserve.hub.downloads import Downloads
from steerserve.hub.wire import Download, DownloadDone, DownloaderTask, Event
from steerserve.nouns.saes.owner import Saes
from steerserve.rules.models.repository import RepoFile
from tests.control.conftest import refused
from tests.doubles import World
from tests.waiting import soon, until

SHA = "a" * 40
SIZE = 100
UNITS = tuple(f"layer_{n}/width_16k/average_l0_3" for n in (1, 2, 3))
UNTOLD = (
    *("config", "downloads", "likes", "pipeline_tag", "license", "language", "parameters"),
    *("gguf_architecture", "gguf_context_length", "gguf_parameters"),
)
ONE, ALL = "acme/gemma-scope-one-res", "acme/gemma-scope-all-res"


class Hub(client.Hub):
    """Repositories of SAEs, without a hub."""

    async def describe(
        self, repo_id: str, revision: str | None = None, token: str | None = None
    ) -> Repository:
        units = UNITS if repo_id == ALL else UNITS[:1]
        files = tuple(RepoFile(f"{unit}/params.npz", SIZE) for unit in units)
        nothing: dict[str, Any] = dict.fromkeys(UNTOLD)
        return Repository(
            repo_id=repo_id,
            sha=SHA,
            is_gated=False,
            is_private=False,
            files=files,
            tags=(),
            parameters_by_dtype={},
            **nothing,
        )


@asynccontextmanager
async def _fetching(
    _: Downloaders, ask: DownloaderTask, __: float
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """What a downloader process does."""
    job = ask.job
    assert isinstance(job, Download)

    async def events() -> AsyncIterator[Event]:
        for file in job.files:
            place = CommitFolder(Path(job.folder)).whole(file)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"x" * SIZE)
        yield DownloadDone()

    yield events()


class Desk:
    """The world with a hub."""

    def __init__(self, world: World) -> None:
        self.world = world
        hub = Hub(world.settings, world.around.downloaders)
        self.downloads = Downloads(hub)
        self.sae_downloads = SaeDownloads(
            world.settings, world.catalog, hub, world.bus, self.downloads, world.sae_reader
        )
        self.saes = Saes(
            world.catalog,
            world.conductor,
            world.sae_reader,
            world.labels,
            self.sae_downloads,
            world.paths,
        )

    async def units_of(self, row: SaeRow) -> list[SaeRow]:
        """The SAEs that the record of a repository stands for."""
        _, *units = await self.sae_downloads.with_units(row.id)
        return units

    async def begin(self, repo_id: str = ONE, file_path: str | None = None) -> SaeRow:
        row, status = await soon(
            self.sae_downloads.begin_download(SaeRequest(repo_id, file_path=file_path))
        )
        assert status == "downloading"
        return row

    async def fetched(self, repo_id: str = ONE, file_path: str | None = None) -> SaeRow:
        """A download that has come to its end."""
        self.world.events.clear()
        row = await self.begin(repo_id, file_path)
        await until(lambda: row.id in self.told)
        return await self.world.catalog.sae(row.id)

    @property
    def told(self) -> dict[str, str | None]:
        """How the downloads ended: why they failed."""
        ends = [*self.world.published(SaeDownloadComplete), *self.world.published(SaeDownloadError)]
        return {end.sae_id: getattr(end, "error", None) for end in ends}

    @property
    def files(self) -> list[str]:
        cache = self.world.settings.sae_cache_dir
        return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*.npz"))


@pytest.fixture
async def desk(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(downloads, "running", _fetching)
    made = Desk(world)
    yield made
    await soon(made.downloads.close())


def lose(row: SaeRow) -> None:
    """Its file is gone."""
    Path(str(row.local_path), "params.npz").unlink()


# ------------------------------------------------------------------ reading


async def test_a_download_that_is_being_read_is_given_up_at_once(desk: Desk) -> None:
    row, _ = await desk.world.reaching("inspect", desk.begin())
    progress = desk.sae_downloads.progress(row.id)
    assert progress is not None
    assert progress.percent == 99
    cancelled, is_cancelled = await soon(desk.sae_downloads.cancel(row.id))
    assert is_cancelled
    assert (cancelled.status, cancelled.error_message) == ("error", "cancelled by user")
    assert desk.told == {row.id: "cancelled by user"}
    assert desk.files == []
    assert desk.world.launcher.alive == []
    again = await desk.fetched()
    assert (again.id, again.status) == (row.id, "cached")
    assert desk.sae_downloads.progress(row.id) is None


async def test_an_engine_that_just_starts_to_read_is_ended_too(desk: Desk) -> None:
    row, gate = await desk.world.reaching("launch", desk.begin())
    cancelling = desk.world.begin(desk.downloads.cancel(row.id))
    await until(lambda: desk.downloads._runs[row.id].interruption)
    gate.open.set()
    assert await soon(cancelling)
    assert desk.world.launcher.alive == []
    assert "inspect" not in desk.world.launcher.log


async def test_a_service_that_ends_waits_for_no_reading(desk: Desk) -> None:
    row, _ = await desk.world.reaching("inspect", desk.begin(ALL))
    await soon(desk.downloads.close())
    assert desk.world.launcher.alive == []
    assert len(desk.world.launcher.engines) == 1
    # the next start says that it was interrupted, and goes on with the files that are there
    assert (await desk.world.catalog.sae(row.id)).status == "downloading"
    assert len(desk.files) == 3


async def test_nothing_is_read_once_the_service_closes(desk: Desk, tmp_path: Path) -> None:
    desk.world.conductor.is_closing = True
    source = m.SaeSource(str(tmp_path), "x")
    assert (await refused(desk.world.sae_reader.read(source))).code == "SHUTTING_DOWN"
    row = await desk.begin()
    await soon(desk.downloads.close())
    assert desk.world.launcher.engines == []
    assert (await desk.world.catalog.sae(row.id)).status == "downloading"


async def test_what_is_being_read_is_deleted_and_other_downloads_go_on(desk: Desk) -> None:
    row, _ = await desk.world.reaching("inspect", desk.begin())
    removing = desk.world.begin(desk.saes.remove(row.id))
    other = await desk.fetched(ALL, UNITS[1])
    await soon(removing)
    assert [sae.id for sae in await desk.world.catalog.saes()] == [other.id]
    assert desk.files == [f"acme--gemma-scope-all-res/{SHA}/{UNITS[1]}/params.npz"]


# ------------------------------------------------------------------ records


async def test_an_attach_under_way_is_not_undone_by_a_download(desk: Desk) -> None:
    await desk.world.loaded()
    row = await desk.fetched()
    attaching, gate = await desk.world.held("attach", desk.world.attachments.attach(row, 1))
    lose(row)
    _, reading = await desk.world.reaching("inspect", desk.begin())
    gate.open.set()
    await soon(attaching)
    desk.world.events.clear()
    reading.open.set()
    await until(lambda: row.id in desk.told)
    after = await desk.world.catalog.sae(row.id)
    assert (after.status, after.local_path) == ("attached", row.local_path)
    assert (after.d_in, after.claims) == (row.d_in, row.claims)
    assert (await soon(desk.sae_downloads.begin_download(SaeRequest(ONE))))[1] == "attached"


async def test_a_unit_and_its_repository_are_downloaded_at_the_same_time(desk: Desk) -> None:
    whole, gate = await desk.world.reaching("inspect", desk.begin(ALL))
    adding = [
        desk.world.begin(desk.sae_downloads.begin_download(SaeRequest(ALL, file_path=unit)))
        for unit in UNITS
    ]
    gate.open.set()
    ids = {(await soon(each))[0].id for each in adding} | {whole.id}
    await until(lambda: whole.id in desk.told and not any(map(desk.sae_downloads.progress, ids)))
    rows = await desk.world.catalog.saes()
    assert {row.id for row in rows} == ids
    assert {row.status for row in rows} == {"cached"}


async def test_a_record_is_written_once_however_many_write_it(world: World) -> None:
    values: dict[str, Any] = {
        "name": "x",
        "format": "saelens",
        "architecture": "",
        "dtype": "",
        "status": "cached",
    }
    puts = [world.catalog.put_sae("sae_x", **values) for _ in range(8)]
    rows = await soon(asyncio.gather(*puts))
    assert {row.id for row in rows} == {"sae_x"}
    await world.catalog.change_sae("sae_x", status="attached")
    kept = await world.catalog.put_sae("sae_x", **values | {"name": "y", "status": "downloading"})
    assert (kept.name, kept.status) == ("x", "attached")
    missing = await refused(world.catalog.put_sae("sae_y", may_add=False, status="error"))
    assert missing.code == "SAE_NOT_FOUND"


# ------------------------------------------------------------------ deleting


async def test_a_repository_is_forgotten_whole_or_not_at_all(desk: Desk) -> None:
    row = await desk.fetched(ALL)
    before = {sae.id for sae in await desk.world.catalog.saes()}
    assert len(before) == 4
    kept = sorted(before - {row.id})[-1]
    async with desk.world.database.write() as connection:
        await connection.execute(
            text(
                f"CREATE TRIGGER kept BEFORE DELETE ON saes WHEN OLD.id = '{kept}' "
                "BEGIN SELECT RAISE(ABORT, 'kept'); END"
            )
        )
    with pytest.raises(Exception, match="kept"):
        await soon(desk.saes.remove(row.id))
    assert {sae.id for sae in await desk.world.catalog.saes()} == before
    assert len(desk.files) == 3


async def test_a_delete_that_is_refused_ends_no_download(desk: Desk) -> None:
    await desk.world.loaded()
    row = await desk.fetched(ALL)
    unit = next(each for each in await desk.units_of(row) if each.file_path == UNITS[0])
    attached, attaching = await desk.world.held("attach", desk.world.attachments.attach(unit, 1))
    lost = next(each for each in await desk.units_of(row) if each.file_path == UNITS[1])
    lose(lost)
    _, reading = await desk.world.reaching("inspect", desk.begin(ALL, UNITS[1]))
    removing = desk.world.begin(desk.saes.remove(row.id))
    attaching.open.set()
    await soon(attached)
    assert (await refused(removing)).code == "SAE_ALREADY_ATTACHED"
    assert desk.sae_downloads.progress(lost.id) is not None
    reading.open.set()
    await until(lambda: desk.sae_downloads.progress(lost.id) is None)
    assert (await desk.world.catalog.sae(lost.id)).status == "cached"
