"""Which folders a client may name."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from steerserve.rules.paths import is_protected


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/bin",
        "/boot/grub",
        "/dev",
        "/dev/shm/model",
        "/etc",
        "/etc/ssl/private",
        "/lib",
        "/lib64/x",
        "/lib32",
        "/libx32",
        "/proc/self",
        "/run/user/0",
        "/sbin",
        "/sys/kernel",
        "/usr",
        "/usr/share/models",
        "/var/run/docker",
    ],
)
def test_a_system_folder_and_all_in_it_is_protected(path: str) -> None:
    assert is_protected(PurePosixPath(path))


@pytest.mark.parametrize(
    "path",
    [
        "/tmp",
        "/tmp/model",
        "/home/me/etc",
        "/home/me/lib",
        "/root/models",
        "/data",
        "/srv/usr",
        "/var/lib/models",
        "/opt/model",
        "/etcetera",
        "/user",
        "/running",
    ],
)
def test_any_other_folder_may_be_named(path: str) -> None:
    assert not is_protected(PurePosixPath(path))
