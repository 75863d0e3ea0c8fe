"""How the compiled functions come to be: compiled once by the C++ compiler of the machine, and kept in the user's cache
folder for the next start."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from grp import getgrgid
from pathlib import Path
from pwd import getpwuid
from stat import S_ISVTX

import platformdirs
import torch

from steerserve.rules.models import compilers
from steerserve.worker.model.native import structs

SOURCES = Path(__file__).parent
"""The folder of the headers, and of `native.cpp`, which includes them."""

_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread", "-c")
_WAYS: tuple[tuple[str, ...], ...] = (("-fopenmp",), ())
"""With the threads of the tensor library where its runtime takes them, otherwise with one thread."""

_PATIENCE = 120.0

data_folder = ""
"""The data folder of the service, where the library is kept if the user's cache cannot be written. The command that
loads a model names it."""


class Unavailable(Exception):
    """There are no compiled functions. The text says why."""


def library() -> ctypes.CDLL:
    """The library with the compiled functions.

    Raises:
        Unavailable.
    """
    home = folder()
    compiler = compilers.compiler(shutil.which)
    if compiler is None:
        raise Unavailable(f"there is no C++ compiler ({', '.join(compilers.COMPILERS)})")
    why = ""
    for way in _WAYS:
        target = home / f"{_digest(compiler, way)}.so"
        try:
            if not _is_own(target):
                _compile(compiler, way, target)
            return ctypes.CDLL(str(target))
        except (OSError, subprocess.SubprocessError) as error:
            why = str(error)
    raise Unavailable(why)


def _compile(compiler: str, way: tuple[str, ...], target: Path) -> None:
    """Compile the library to its place, to which it moves in one step."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        source, compiled, linked = (Path(scratch) / f"native.{end}" for end in ("cpp", "o", "so"))
        source.write_text("\n".join(_lines()))
        # linked without a runtime of OpenMP, so that only the one of the tensor library can be used
        for command in (
            [compiler, *_FLAGS, *way, str(source), "-o", str(compiled)],
            [compiler, "-shared", "-pthread", str(compiled), "-o", str(linked)],
        ):
            done = subprocess.run(  # noqa: S603 -- the compiler of the machine, with its own source
                command, capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
            if done.returncode:
                errors = (line for line in done.stderr.splitlines() if "error" in line)
                raise OSError(next(errors, "the compiler failed"))
        linked.chmod(0o700)
        linked.rename(target)


def _lines() -> list[str]:
    """The source that is compiled: the functions, and what must hold of the structs that they share with Python."""
    functions = f'#include "{SOURCES / "native.cpp"}"'
    return ["#include <cstddef>", functions, *structs.assertions(), ""]


def _digest(compiler: str, way: tuple[str, ...]) -> str:
    """The name of a compiled library: another one for other sources, another compiler, processor or tensor library."""
    stat = Path(compiler).resolve().stat()
    told = [compiler, stat.st_size, stat.st_mtime_ns, _FLAGS, way, torch.__version__, processor()]
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    told += [(path.name, path.read_bytes()) for path in files]
    told += structs.assertions()
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def processor() -> str:
    """The instructions that this processor has, as the system tells them."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("model", "flags"))}))
    return platform.processor()


def folder() -> Path:
    """The folder of the compiled libraries and of what the checks of models found: the first that can be written.

    Raises:
        Unavailable.
    """
    candidates = compilers.folders(platformdirs.user_cache_dir("steerserve"), data_folder)
    # a folder that others may write into is a fault to tell, not one to go around
    for candidate in filter(compilers.is_writable, candidates):
        return _own_folder(candidate)
    told = " and ".join(map(str, candidates))
    raise Unavailable(f"{compilers.NO_FOLDER}: {told} cannot be written")


def _own_folder(folder: Path) -> Path:
    """The folder, which is made if it is missing, and which nobody else may write into.

    Raises:
        Unavailable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made: {error.strerror}") from error
    if not _is_own(folder):
        raise Unavailable(f"others may write into {folder}")
    # whoever may write into a folder above can put another folder in the place of this one
    for above in {*folder.absolute().parents, *folder.resolve().parents}:
        if not _is_closed(above):
            raise Unavailable(f"others may write into {above}, a folder above {folder}")
    return folder


def _is_closed(folder: Path) -> bool:
    """Whether only this user and the administrator may rename what is in a folder. In a folder like /tmp, whose sticky
    bit is set, only the owner of an entry may. The group of a user alone is no other user."""
    stat = folder.stat()
    if stat.st_uid not in (0, os.getuid()):
        return False
    others = 0o002 if _is_private(stat.st_gid) else 0o022
    return not stat.st_mode & others or bool(stat.st_mode & S_ISVTX)


def _is_private(group: int) -> bool:
    """Whether a group is that of the administrator, or the one that many systems make for each user."""
    if group == 0:
        return True
    try:
        user, found = getpwuid(os.getuid()), getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and set(found.gr_mem) <= {user.pw_name} == {found.gr_name}


def _is_own(path: Path) -> bool:
    """Whether a path is there, and only this user may write to it."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o022
