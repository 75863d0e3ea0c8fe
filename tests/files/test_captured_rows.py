"""Rows of captures, read back: from whole shards, from the one that is written, and from the last of a capture."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from steerserve.errors import Refusal
from steerserve.files.captures import Capture, CaptureFolders, CaptureWriter, Rows, StoredSite

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WIDTHS = {"resid_post": 65_536, "hook_z": 32_768}
ROWS = 7


def of(dtype: str) -> Capture:
    sites = [
        StoredSite(
            tensor=f"{site}.2", site=site, layer=2, heads=None, width=width, module_path="model"
        )
        for site, width in WIDTHS.items()
    ]
    return Capture(
        id="capture_0123456789ab",
        name="sea",
        created_at=NOW,
        model="model",
        model_digest=None,
        steering_state=None,
        asked={"shard_mb": 1},
        dtype=dtype,
        sites=sites,
    )


@pytest.mark.parametrize(("dtype", "in_shard"), [("float32", 2), ("float16", 5), ("bfloat16", 5)])
def test_each_row_is_read_back_whether_its_shard_is_whole_or_not(
    tmp_path: Path, dtype: str, in_shard: int
) -> None:
    folders, capture = CaptureFolders(tmp_path), of(dtype)
    assert capture.shard_rows == in_shard
    folders.add(capture)
    writer = CaptureWriter(folders, capture)
    source = torch.Generator().manual_seed(0)
    type_ = getattr(torch, dtype)
    values = [torch.randn(ROWS, width, generator=source).to(type_) for width in WIDTHS.values()]
    sums = [(one.double().sum(0).numpy().tobytes(), 1.0) for one in values]
    parts = [[one.view(torch.uint8).numpy().tobytes()] for one in values]
    writer.write([Rows(0, 0, range(ROWS), range(ROWS), parts, sums)])

    def check() -> None:
        for site, own in enumerate(values):
            for row in range(ROWS):
                read = folders.row(writer.capture, site, row)
                assert np.array_equal(np.array(read), own[row].float().numpy())

    check()
    writer.finish(NOW)
    check()


def test_a_row_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    folders, capture = CaptureFolders(tmp_path), structs.replace(of("float32"), rows=ROWS)
    folders.add(capture)
    with pytest.raises(Refusal, match="row 3 of capture_0123456789ab cannot be read") as refused:
        folders.row(capture, 0, 3)
    assert refused.value.code == "CAPTURE_NOT_FOUND"


def test_what_asks_for_a_capture_that_another_request_deletes_is_refused(tmp_path: Path) -> None:
    folders, capture = CaptureFolders(tmp_path), of("float32")
    folders.add(capture)
    folders.get(capture.id)
    folders.remove(capture.id)
    assert not list(tmp_path.iterdir())
    for ask in (folders.remove, folders.files):
        with pytest.raises(Refusal) as refused:
            ask(capture.id)
        assert refused.value.code == "CAPTURE_NOT_FOUND"
