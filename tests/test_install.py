"""Environments of their own, each with what one line of pip installs from the sources: `make test-install`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steerserve import demo
from tests.circuits import detach
from tests.processes import free_port
from tests.service import Running

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "notebooks" / "first-look.ipynb"
LARGEST_MB = 40
OF_SERVICE = ("serve", "demo", "doctor", "backup FILE", "restore FILE", "openapi")
LINE = 'pip install "steerserve[serve]"'
AGENT = {"name": "agent", "version": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Environment:
    """A Python in a folder of its own, with the package."""

    def __init__(self, folder: Path, extra: str) -> None:
        self.folder = folder
        self._settings = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "STEERSERVE_URL")
        }
        self._settings["STEERSERVE_HOME"] = str(folder / "home")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.empty = self.megabytes()
        constraints = str(ROOT / "constraints.txt")
        done = self.run("python", *"-m pip install -q -c".split(), constraints, f"{ROOT}{extra}")
        assert done.returncode == 0, done.stderr

    def run(
        self, program: str, *arguments: str, typed: str = "", **settings: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            input=typed,
            cwd=self.folder,
            env=self._settings | {"STEERSERVE_UI": "skip"} | settings,
            capture_output=True,
            text=True,
        )

    def has(self, module: str) -> bool:
        return self.run("python", "-c", f"import {module}").returncode == 0

    def megabytes(self) -> float:
        """What the installed packages take on the disk."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return sum(file.stat().st_blocks * 512 for file in packages.rglob("*")) / 1e6

    @property
    def package(self) -> Path:
        (package,) = self.folder.glob("lib/python*/site-packages/steerserve")
        return package


Install = Callable[[str], Environment]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return lambda extra: Environment(tmp_path / "environment", extra)


def free_address() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_the_light_install_asks_a_service(install: Install, sea: Running) -> None:
    light = install("")
    taken = light.megabytes() - light.empty
    print(f"the light install takes {taken:.1f} MB")
    assert taken < LARGEST_MB
    assert not [name for name in ("torch", "numpy", "fastapi", "sqlalchemy") if light.has(name)]
    assert not (light.package / "webui").exists()
    assert not (light.package / "demo" / "data").exists()
    seen = light.run("steerserve", "ps", STEERSERVE_URL=sea.url)
    assert (seen.returncode, demo.MODEL_NAME in seen.stdout) == (0, True), seen.stderr
    told = light.run("steerserve", "run", "demo", "One day", STEERSERVE_URL=sea.url)
    assert (told.returncode, told.stdout != "") == (0, True), told.stderr
    embed = "from steerserve import Client; Client().embed('a')"
    refused = light.run("python", "-c", embed, STEERSERVE_URL=sea.url)
    assert 'pip install "steerserve[arrays]"' in refused.stderr
    for command in OF_SERVICE:
        refused = light.run("steerserve", *command.split())
        assert (refused.returncode, LINE in refused.stderr) == (2, True), command
    detach(sea)
    refused = light.run("steerserve", "run", "demo", "One day", STEERSERVE_URL=sea.url)
    assert (refused.returncode, LINE in refused.stderr) == (1, True)
    refused = light.run("steerserve", "run", "demo", "One day", STEERSERVE_URL=free_address())
    assert (refused.returncode, LINE in refused.stderr) == (3, True)
    refused = light.run("steerserve", "mcp")
    assert (refused.returncode, "steerserve[mcp]" in refused.stderr) == (2, True)


def test_the_extra_arrays_runs_the_notebook(install: Install, sea: Running) -> None:
    light = install("[arrays]")
    assert not light.has("torch")
    own = {name: str(light.folder / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    ran = light.run("jupyter", "execute", str(NOTEBOOK), STEERSERVE_URL=sea.url, **own)
    assert ran.returncode == 0, ran.stderr


def test_the_extra_mcp_has_the_tools_for_agents(install: Install, shared: Running) -> None:
    light = install("[mcp]")
    assert not light.has("torch")
    agent = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": AGENT}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": agent}
    ran = light.run("steerserve", "mcp", typed=f"{json.dumps(hello)}\n", STEERSERVE_URL=shared.url)
    assert (ran.returncode, "text_features" in ran.stdout) == (0, True), ran.stderr


def test_the_extra_serve_serves_the_demo_and_stops(install: Install) -> None:
    whole = install("[serve]")
    address = free_address()
    story = whole.run(
        *("steerserve", "run", "demo", "--temperature", "0", "Tell me a story."),
        STEERSERVE_URL=address,
    )
    assert (story.returncode, story.stdout != "") == (0, True), story.stderr
    assert whole.run("steerserve", "stop", STEERSERVE_URL=address).returncode == 0
