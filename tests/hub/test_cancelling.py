"""What a download leaves when it is cancelled, stopped with the service, or its model deleted."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from steerserve.files import folder as module
from steerserve.files.folder import CommitFolder, folder_of
from steerserve.rules.models.repository import RepoFile
from tests.hub.conftest import FILES, GET, TOTAL, Desk, MakeDesk, assert_there, downloaders, held
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused


async def test_cancel_leaves_nothing(desk: Desk, tiny: LoopbackHub) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", hold=100_000)
    await desk.start(1, job)
    await held(fault.held)
    await desk.told_of(lambda progress: progress.downloaded_bytes >= 100_000)
    (child,) = downloaders()
    assert any(desk.cache.rglob("*.part"))
    assert await desk.downloads.cancel(1)
    assert not child.is_running()
    assert desk.codes == ["DOWNLOAD_CANCELLED"]
    assert desk.ends[0][1] is not None
    assert "cancelled by user" in desk.ends[0][1].message
    assert desk.files == []
    assert not await desk.downloads.cancel(1)
    assert len(desk.ends) == 1


async def test_cancel_of_one_that_waits_for_its_turn(
    make_desk: MakeDesk, tiny: LoopbackHub
) -> None:
    desk = make_desk(max_download_workers=1)
    job = desk.job(await desk.hub.describe("acme/tiny"))
    await desk.start(1, job)
    await desk.start(2, job)
    assert await desk.downloads.cancel(2)
    assert desk.codes == ["DOWNLOAD_CANCELLED"]
    await desk.ended(2)
    assert desk.ends[1] == (1, None)
    assert_there(job)


async def test_cancel_at_once_and_during_a_wait_between_attempts(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    await desk.start(1, job)
    assert await desk.downloads.cancel(1)
    tiny.fault("/resolve/", status=500)
    waiting = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    desk.downloads._sleep = sleep
    await desk.start(2, job)
    await asyncio.wait_for(waiting.wait(), 30)
    assert await desk.downloads.cancel(2)
    assert desk.codes == ["DOWNLOAD_CANCELLED"] * 2
    assert desk.files == []


async def test_cancel_keeps_what_another_model_has(desk: Desk, tiny: LoopbackHub) -> None:
    found = await desk.hub.describe("acme/tiny")
    kept = desk.job(found, "config.json", "tokenizer.json")
    await desk.fetch(1, kept)
    fault = tiny.fault(GET + kept.sha + "/model", hold=100_000)
    await desk.start(2, desk.job(found))
    await held(fault.held)
    assert await desk.downloads.cancel(2)
    assert_there(kept, {path: FILES[path] for path in ("config.json", "tokenizer.json")})


async def test_cancel_after_failed_attempts_removes_their_parts_too(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    tiny.fault(GET + job.sha + "/tokenizer", status=500)
    await desk.fetch(1, job)
    assert desk.files
    tiny.heal()
    fault = tiny.fault("HEAD ", hold=0)
    await desk.start(1, job)
    fault.release.set()
    assert await desk.downloads.cancel(1)
    assert desk.files == []


async def test_files_that_cannot_be_removed_do_not_keep_a_cancelled_download_from_its_end(
    desk: Desk, tiny: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=100_000)
    await desk.start(1, job)
    await held(fault.held)

    def discard(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(CommitFolder, "discard", discard)
        assert await desk.downloads.cancel(1)
    assert desk.codes == ["DOWNLOAD_CANCELLED"]
    assert not desk.downloads.progress(1)
    await desk.fetch(1, job)
    assert_there(job)


async def test_a_stop_ends_the_processes_and_keeps_the_parts(
    desk: Desk, tiny: LoopbackHub, make_desk: MakeDesk
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    fault = tiny.fault(GET + job.sha + "/model", times=1, hold=100_000)
    await desk.start(1, job)
    await held(fault.held)
    await desk.told_of(lambda progress: progress.downloaded_bytes > 90_000)
    await desk.downloads.close()
    assert not downloaders()
    assert desk.codes == ["SHUTTING_DOWN"]
    assert (await refused(desk.start(2, job))).code == "SHUTTING_DOWN"
    later = make_desk()
    assert 0 < await later.downloads.missing_bytes(job) < TOTAL
    await later.start(1, job)
    await later.ended()
    assert later.codes == [None]
    assert_there(job)
    assert tiny.asked(GET + job.sha + "/model")[-1].range is not None


async def test_the_files_of_a_deleted_model_are_removed(desk: Desk, loopback: LoopbackHub) -> None:
    loopback.add("acme/two", {"q4/a.gguf": b"4", "q8/deep/a.gguf": b"8", "README.md": b"#"})
    job = desk.job(await desk.hub.describe("acme/two"))
    await desk.fetch(1, job)
    *rest, q8 = sorted(job.files, key=lambda file: file.path)
    CommitFolder(job.folder).remove([q8])
    assert [path for path in desk.files if "." in path] == [
        f"acme--two/{job.sha}/README.md",
        f"acme--two/{job.sha}/q4/a.gguf",
    ]
    assert not (job.folder / "q8").exists()
    CommitFolder(job.folder).remove(rest)
    assert desk.files == []


@pytest.fixture
def scattered(tmp_path: Path) -> tuple[CommitFolder, RepoFile, RepoFile]:
    """A folder where each of two files is there finished, whole and in part."""
    folder = CommitFolder(folder_of(tmp_path / "cache", "acme/two", "a" * 40))
    first, second = RepoFile("deep/er/a.gguf", 1), RepoFile("b.gguf", 1)
    for file in (first, second):
        staged = folder.whole(file)
        for place in (folder.final(file), staged, folder.part(file), Path(f"{staged}.xet-part")):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"x")
    return folder, first, second


def test_removed_files_leave_neither_parts_nor_empty_folders(
    scattered: tuple[CommitFolder, RepoFile, RepoFile],
) -> None:
    folder, first, second = scattered
    folder.remove([first])
    assert [path.name for path in folder.path.iterdir()] == ["b.gguf"]
    assert len(list(folder.staging.iterdir())) == 3
    folder.remove([first, second])
    assert not folder.path.parent.exists()


def test_a_file_that_cannot_be_removed_is_said_and_the_others_are_removed(
    scattered: tuple[CommitFolder, RepoFile, RepoFile],
) -> None:
    folder, first, second = scattered
    folder.final(first).unlink()
    folder.final(first).mkdir()
    with pytest.raises(OSError, match=r"directory|permitted"):
        folder.remove([first, second])
    assert not folder.final(second).exists()
    assert not folder.staging.exists()


def test_all_of_a_commit_is_removed_and_nothing_of_another(
    scattered: tuple[CommitFolder, RepoFile, RepoFile],
) -> None:
    folder, *_ = scattered
    other = folder.path.with_name("b" * 40)
    other.mkdir()
    folder.remove_all()
    assert list(folder.path.parent.iterdir()) == [other]
    folder.remove_all()
    CommitFolder(other).remove_all()
    assert not other.parent.exists()


def test_what_is_left_of_a_commit_is_said(
    scattered: tuple[CommitFolder, RepoFile, RepoFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, *_ = scattered
    # a test that runs as root cannot take its own rights away
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(OSError, match="not empty"):
        folder.remove_all()
