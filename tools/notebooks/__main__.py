"""Run the notebooks, and keep their outputs: `make notebooks`. Without `--url` a demo service is started for them."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from steerserve import Client, ServiceError

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
CELL_SECONDS, START_SECONDS = 120, 120
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a service with the demo model and its SAE")
    parser.add_argument("--into", type=Path, default=FOLDER, help="where the notebooks are kept")
    given = parser.parse_args()
    if given.url is not None:
        run(given.url, given.into)
        return
    with demo_service() as url:
        run(url, given.into)


def run(url: str, into: Path) -> None:
    """Run all notebooks against a service."""
    os.environ["STEERSERVE_URL"] = url  # the kernels inherit it
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        NotebookClient(notebook, timeout=CELL_SECONDS, record_timing=False).execute()
        notebook.metadata = METADATA
        nbformat.write(notebook, into / path.name)  # type: ignore[no-untyped-call]


@contextmanager
def demo_service() -> Iterator[str]:
    """The address of a service with the bundled model, which ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "steerserve", "demo", "--port", str(port)],
            env=os.environ | {"STEERSERVE_HOME": home, "LOG_LEVEL": "WARNING"},
            stdout=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            ending = time.monotonic() + START_SECONDS
            while not is_up(url):
                if process.poll() is not None or time.monotonic() > ending:
                    raise SystemExit("the demo service did not start")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


def is_up(url: str) -> bool:
    """Whether the service has its model and its SAE."""
    try:
        with Client(url) as client:
            return client.health.detailed().sae_attached
    except ServiceError:
        return False


if __name__ == "__main__":
    main()
