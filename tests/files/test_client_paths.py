"""The folders of this machine that requests name."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerserve.errors import Refusal
from steerserve.files import client_paths
from steerserve.files.client_paths import ClientPaths


def test_a_folder_with_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_paths, "LOCAL_FOLDER_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    paths = ClientPaths(None)
    paths.check_allowed(str(tmp_path))
    (tmp_path / "a" / "d").write_text("")
    with pytest.raises(Refusal, match="more than 3 files and folders"):
        paths.check_allowed(str(tmp_path))
    # a link to a folder above is walked once
    (tmp_path / "a" / "d").unlink()
    (tmp_path / "b").rmdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    paths.check_allowed(str(tmp_path))


def test_copies_beside_the_database_are_the_services_own(tmp_path: Path) -> None:
    paths = ClientPaths(None, database=tmp_path / "steerserve.db")
    for name in ("steerserve.db", "steerserve.db-wal", "steerserve.db.0012-20260101T000000Z"):
        with pytest.raises(Refusal, match="own files"):
            paths.check_allowed(str(tmp_path / name))
    paths.check_allowed(str(tmp_path / "other.db"))
