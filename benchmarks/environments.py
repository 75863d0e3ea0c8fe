"""Environments of other libraries and servers: their own packages on top of those of this environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import torch

SHARED = "the packages of this project's environment, PyTorch among them, are shared"


def environment(folder: Path, libraries: Sequence[str], bare: Sequence[str] = ()) -> Path:
    """The interpreter of an environment with these libraries. Those of `bare` are installed without their dependencies.

    Raises:
        subprocess.CalledProcessError: a library cannot be installed.
    """
    python = folder / "bin" / "python"
    wanted = " ".join((sys.executable, *libraries, *bare))
    marker = folder / "libraries.txt"
    if marker.is_file() and marker.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    own = next(folder.glob("lib/python*/site-packages"))
    (own / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(sorted(installed())))
    pip = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-c", str(constraints), *libraries], check=True)
    if bare:
        subprocess.run([*pip, "--no-deps", *bare], check=True)
    if (own / "torch").exists():
        raise SystemExit("the environment got a PyTorch of its own")
    marker.write_text(wanted)
    return python


def installed() -> Iterator[str]:
    for found in metadata.distributions():
        if found.name not in ("steerserve", "steerserve-service"):
            yield f"{found.name}=={found.version}"
