"""What the system says about processors: limits of control groups, waiting and idle time."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerserve.worker.process import processors


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, 4.0),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        (
            "4:memory:/m\n2:cpu:/c\n0::/",
            {"cpu/c/cpu.cfs_quota_us": "50000", "cpu/c/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        (
            "2:cpu:/c",
            {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"},
            None,
        ),
        ("0::/gone", {}, None),
        ("0::/", {"cpu.max": "nonsense"}, None),
    ],
)  # fmt: skip
def test_the_least_limit_of_the_control_groups_counts(
    tmp_path: Path, own: str, files: dict[str, str], quota: float | None
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        target = tmp_path / "groups" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    assert processors.quota(tmp_path / "groups", tmp_path / "own") == quota


def test_the_system_counts_waiting_and_idle_time() -> None:
    assert processors.allowed()
    assert processors.idle() > 0
    waited = processors.waited()
    if Path("/proc/self/schedstat").is_file():
        assert waited is not None
        assert processors.waited() >= waited
    else:
        assert waited is None
