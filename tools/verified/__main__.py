"""`python -m tools.verified [--only NAME ...]`: with `--only`, the other rows are those of the newest run with the same
libraries."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
import torch
from benchmarks.kept import Kept
from transformers.utils import logging as transformers_logging

from steerserve.worker.model import truth
from tools.real import packages, text
from tools.verified import page
from tools.verified.families import (
    EMBEDDERS,
    FAMILIES,
    REAL,
    save_embedder,
    save_family,
)
from tools.verified.measuring import measure_embedder, measure_model


def measure_family(name: str, folder: Path) -> dict[str, Any]:
    """A row of FAMILIES, over a checkpoint that is made in this folder."""
    return measure_model(save_family(name, folder), "<bos>" + truth.TEXT)


def measure_real(name: str) -> dict[str, Any]:
    """A row of REAL, over the first sample of the Brown corpus."""
    row = REAL[name]
    sample = next(iter(text.samples().values()))
    return measure_model(row.folder(), sample, row.quantization)


def measure_embeddings(name: str, folder: Path) -> dict[str, Any]:
    """A row of EMBEDDERS, over the lines of a text."""
    return measure_embedder(save_embedder(name, folder), truth.TEXT.splitlines()[:8])


def _measure(name: str, folder: Path) -> dict[str, Any]:
    if name in EMBEDDERS:
        return measure_embeddings(name, folder)
    return measure_real(name) if name in REAL else measure_family(name, folder)


@contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """A cache of checks in this folder, so that those of the user's models stay. Compiled functions are the user's."""
    kernels = Path(platformdirs.user_cache_dir("steerserve")) / "kernels"
    mine = folder / "steerserve" / "kernels"
    mine.mkdir(parents=True)
    for library in kernels.glob("*.so"):
        os.symlink(library, mine / library.name)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*FAMILIES, *EMBEDDERS, *REAL]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names)
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    os.environ["STEERSERVE_REAL"] = str(
        packages.kept()
    )  # the user's, also while the cache is another
    kept = Kept("verified")
    found = page.found_before(kept.found["machine"]) if chosen != names else page.nothing()
    failed = []
    with tempfile.TemporaryDirectory() as home, _own_cache(Path(home) / "cache"):
        for number, name in enumerate(chosen):
            try:
                row = _measure(name, Path(home) / str(number))
            except Exception:  # the other rows are measured all the same
                traceback.print_exc()
                failed.append(name)
                continue
            found["embedders" if name in EMBEDDERS else "models"][name] = row
            print(f"{name}: {json.dumps(row)}", flush=True)
            kept.write(found)
    if len(failed) < len(chosen):
        page.write()
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
