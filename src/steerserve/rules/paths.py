"""Which folders a client may name on this machine."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath

_PROTECTED = ("/bin", "/boot", "/dev", "/etc", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run")


def is_protected(resolved: PurePath) -> bool:
    """Whether a path is the root or lies in a system folder. Links in the path must be resolved before."""
    resolved = PurePosixPath(resolved)
    if resolved == PurePosixPath("/"):
        return True
    top = "/" + resolved.parts[1] if len(resolved.parts) > 1 else "/"
    if top.startswith("/lib"):
        return True
    return any(resolved == folder or folder in resolved.parents for folder in _folders())


def _folders() -> tuple[PurePosixPath, ...]:
    return tuple(PurePosixPath(folder) for folder in _PROTECTED)
