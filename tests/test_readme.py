"""The commands of the README, run as written, against the service that they start."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve import demo

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Runs `steerserve demo`, as `make run` does, and waits until it has printed what to try next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("readme")
    process = subprocess.Popen(
        [sys.executable, "-m", "steerserve", "demo", "--port", str(chosen)],
        env=os.environ | {"STEERSERVE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    said: list[str] = []
    announced = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "SENSING_CONTEXT_TOKENS=0" in line:  # the last line says which texts are kept
                announced.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert announced.wait(90), said
    assert f"http://127.0.0.1:{chosen}" in "".join(said)
    yield chosen
    # an idle stop is clean, and leaves no child
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.terminate()
    assert process.wait(60) == 0
    assert psutil.wait_procs(children, timeout=60)[1] == []
    reader.join(10)
    assert process.stdout is not None
    process.stdout.close()


def test_every_command_of_the_tour_works_in_order(port: int) -> None:
    answers = []
    for block in blocks("bash"):
        for command in re.split(r"\n(?=curl )", block.strip()):
            ran = subprocess.run(
                ["bash", "-c", command.replace(":8000", f":{port}")],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert ran.returncode == 0, ran.stderr
            answers.append(json.loads(ran.stdout))
    story, turned_up, attachment, steering, off, *rest = answers
    assert story["choices"][0]["message"]["content"]
    proof = demo.proof()
    expected = {str(proof["feature_idx"]): proof["strength"]}
    assert turned_up["data"] == steering["data"] == {"enabled": True, "values": expected}
    assert attachment["data"]["is_attached"] is True
    assert off["data"] == {"enabled": False, "values": {}}
    activated, dialed, _, firings, attached, served, _, edge_firings, ended = rest
    assert activated["data"]["sensing_armed"] is True
    assert dialed["data"]["reapplied"] is True
    (firing,) = firings["data"]["events"]
    assert firing["fired_count"] >= 2
    assert attached["data"]["entries"][0]["status"] == "attached"
    assert served["data"]["steering"] is True
    assert served["data"]["serving_mode"] == "full"
    (edge,) = edge_firings["data"]["events"]
    assert edge["token_lag"] >= 1
    assert ended["data"]["cleared_steering"] is True


def test_the_python_examples_write_a_story(port: int) -> None:
    for example in blocks("python"):
        ran = subprocess.run(
            [sys.executable, "-c", example.replace(":8000", f":{port}")],
            env=os.environ | {"STEERSERVE_URL": f"http://127.0.0.1:{port}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        assert len(ran.stdout.split()) > 5


def test_the_command_of_the_terminal_writes_a_steered_story(port: int) -> None:
    (block,) = blocks("console")
    command = shlex.split(block.removeprefix("$ steerserve "))
    address = {"STEERSERVE_URL": f"http://127.0.0.1:{port}"}
    for words in (command, ["steer", "--off"]):
        ran = subprocess.run(
            [sys.executable, "-m", "steerserve", *words],
            env=os.environ | address,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        assert len(ran.stdout.split()) > 2


def test_a_model_of_ones_own_is_registered_loaded_and_served(port: int, tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    shutil.copytree(demo.MODEL_DIR, folder)
    (block,) = [block for block in blocks("sh") if "/data/my-model" in block]
    commands = re.split(r"\n(?=curl )", block.strip())
    register = next(command for command in commands if "/data/my-model" in command)
    load = next(command for command in commands if "MODEL_ID" in command)

    def run(command: str) -> Any:
        ran = subprocess.run(
            ["bash", "-c", command.replace(":8000", f":{port}")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    added = run(register.replace("/data/my-model", str(folder)))["data"]
    ask = "curl -s http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d "
    ask += """'{"model": "my-model", "prompt": "One day", "max_tokens": 1}'"""
    assert run(ask)["error"]["code"] == "model_locked"  # the SAE of the demo is attached
    assert run(load.replace("MODEL_ID", str(added["id"])))["data"]["status"] == "loaded"
    assert run(ask)["model"] == "my-model"


def test_the_make_targets_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE))
    assert {"run", "test", "check", "bench"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_links_lead_somewhere_and_it_is_short() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link
    assert len(README.splitlines()) < 200


@pytest.mark.parametrize("start", [ROOT / "README.md", ROOT / "docs" / "index.md"])
def test_every_page_of_the_manual_is_named(start: Path) -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {start.name}
    named = {Path(link).name for link in re.findall(r"\]\(([^)#]+)[^)]*\)", start.read_text())}
    assert not pages - named
