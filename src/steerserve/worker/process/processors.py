"""What the system says about the processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_TASKS = Path("/proc/self/task")


def allowed() -> list[int]:
    """The numbers of the processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):  # not every system lets a process be pinned
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def quota(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The number of processors whose time the control group of this process may use; None without a limit."""
    limits = []
    for group in _own_groups(groups, own):
        with suppress(OSError, ValueError, IndexError):
            if (group / "cpu.max").is_file():
                most, period = (group / "cpu.max").read_text().split()
            else:
                most = (group / "cpu.cfs_quota_us").read_text()
                period = (group / "cpu.cfs_period_us").read_text()
            if int(most) > 0:
                limits.append(int(most) / int(period))
    return min(limits, default=None)


def waited() -> float | None:
    """Seconds in which threads of this process were ready but had no processor, summed over the threads; None where the
    system does not count them."""
    total = 0
    try:
        for task in _TASKS.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                total += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def idle() -> float:
    """Seconds in which the processors that this process may use did nothing, summed over them."""
    each = psutil.cpu_times(percpu=True)
    return float(sum(each[number].idle for number in allowed() if number < len(each)))


def _own_groups(groups: Path, own: Path) -> Iterator[Path]:
    """The control groups of this process that may limit its processors, each with the groups around it."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "cpu" not in kinds.split(","):
                continue
            top = groups / kinds if kinds else groups
            group = top / path.lstrip("/")
            yield from (group, *(above for above in group.parents if above.is_relative_to(top)))
