"""The hub's chunk store: used where it is offered safely, done without where it fails."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from steerserve.files.folder import CommitFolder
from steerserve.hub import transfer
from steerserve.hub.session import Session
from steerserve.hub.wire import Download
from steerserve.rules.models.repository import RepoFile
from tests.hub.conftest import WEIGHTS, Desk, assert_there
from tests.loopback_hub import LoopbackHub

RATES = ("total_bytes_completion_rate", "total_transfer_bytes_completion_rate")


def test_a_chunk_store_that_is_offered_is_used_and_its_bytes_count_once(
    tiny: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store itself speaks to its own servers, so it is played here; the reports are huggingface_hub's own."""
    sha = tiny.repos["acme/tiny"].sha
    offer_chunks(tiny, sha, tiny.url)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    told: list[int] = []

    def xet_get(*, incomplete_path: Path, expected_size: int, tqdm_class: Any, **_: Any) -> None:
        with XetDownloadProgressReporter(
            reconstruction_desc="", total=expected_size, log_level=20, tqdm_class=tqdm_class
        ) as bars:
            for done in (expected_size // 2, expected_size):
                report: dict[str, float] = {
                    "total_bytes_completed": done,
                    "total_bytes": expected_size,
                }
                report |= {"total_transfer_bytes_completed": done + 7}
                report |= dict.fromkeys(RATES, 1.0)
                bars.update_progress(SimpleNamespace(**report))
        told.append(tqdm_class.bytes)
        incomplete_path.write_bytes(WEIGHTS)

    monkeypatch.setattr(transfer, "xet_get", xet_get)
    files = [RepoFile("model.safetensors", len(WEIGHTS), digest)]
    folder = tmp_path / sha
    job = Download("acme/tiny", sha, files, str(folder), use_xet=True)
    transfer.fetch_all(job, Session(tiny.url, None, None), lambda _: None)
    assert told == [len(WEIGHTS)]
    assert CommitFolder(folder).whole(files[0]).read_bytes() == WEIGHTS
    assert not tiny.asked("GET ")


def offer_chunks(hub: LoopbackHub, sha: str, at: str) -> None:
    hub.fault(
        f"HEAD /acme/tiny/resolve/{sha}/model",
        status=200,
        headers={
            "X-Repo-Commit": sha,
            "ETag": '"x"',
            "X-Linked-Size": str(len(WEIGHTS)),
            "X-Xet-Hash": hashlib.sha256(WEIGHTS).hexdigest(),
            "X-Xet-Refresh-Route": f"{at}/api/models/acme/tiny/xet-read-token/{sha}",
        },
    )


async def test_a_chunk_store_whose_tokens_come_from_elsewhere_is_not_used(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    with LoopbackHub() as elsewhere:
        offer_chunks(tiny, job.sha, elsewhere.url)
        await desk.fetch(1, job)
        assert not elsewhere.seen
    assert_there(job)


async def test_a_chunk_store_that_is_offered_but_broken_is_left_for_plain_http(
    desk: Desk, tiny: LoopbackHub
) -> None:
    job = desk.job(await desk.hub.describe("acme/tiny"))
    offer_chunks(tiny, job.sha, tiny.url)
    await desk.fetch(1, job)
    assert desk.codes == [None]
    assert tiny.asked("/xet-read-token/"), "it was tried"
    assert_there(job)
