"""The C++ compilers with which an engine compiles functions of its model on a processor."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
"""The names by which a compiler is looked for, in this order."""


NO_FOLDER = "compiled functions can be kept nowhere"
"""The beginning of the reason where no folder can be used."""


def is_writable(folder: Path) -> bool:
    """Whether files can be written into a folder, which is made first where it is missing."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(there, os.W_OK | os.X_OK)


def folders(user_cache: str, data: str) -> Sequence[Path]:
    """The folders in which compiled functions may be kept, the first choice first: the user's cache folder, then the
    data folder, which may be on another machine and then is not there."""
    own = [Path(user_cache) / "kernels"]
    return [*own, Path(data) / "kernels"] if data and Path(data).is_dir() else own


def compiler(which: Callable[[str], str | None]) -> str | None:
    """The path of the first compiler that `which` finds; None where it finds none."""
    return next((path for name in COMPILERS if (path := which(name))), None)
