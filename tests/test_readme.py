"""The commands of the README, run as written, against the service that they start."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import save
from typer.testing import CliRunner

from steerserve import demo
from steerserve.cli import main
from tests.loopback_hub import LoopbackHub
from tests.processes import run_program, serving

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


SEA = frozenset(
    "beach boat captain coast fish fishermen harbour ocean sea shells ship shore".split()
)


def is_of_the_sea(text: str) -> bool:
    return not SEA.isdisjoint(re.findall(r"\w+", text.lower()))


def sae_in_a_repository() -> dict[str, bytes]:
    """An SAE in the form of sparsify, which fits the demo model at layer 3."""
    width = json.loads((demo.MODEL_DIR / "config.json").read_text())["hidden_size"]
    facts = {"expansion_factor": 1, "normalize_decoder": True, "num_latents": 0, "k": 4}
    tensors = {name: np.eye(width, dtype=np.float32) for name in ("encoder.weight", "W_dec")}
    tensors |= {name: np.zeros(width, np.float32) for name in ("encoder.bias", "b_dec")}
    return {
        "config.json": json.dumps({"model": "EleutherAI/pythia-70m"}).encode(),
        "layers.3/cfg.json": json.dumps({**facts, "d_in": width, "signed": False}).encode(),
        "layers.3/sae.safetensors": save(tensors),
    }


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    """A hub that has the model and the SAE that the README names; its model is the demo's."""
    with LoopbackHub() as double:
        files = {file.name: file.read_bytes() for file in demo.MODEL_DIR.iterdir()}
        double.add("EleutherAI/pythia-70m", files)
        double.add("EleutherAI/sae-pythia-70m-32k", sae_in_a_repository())
        yield double


@pytest.fixture(scope="module")
def port(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Runs `steerserve demo`, as `make run` does, and waits until it has printed what to try next."""
    home = tmp_path_factory.mktemp("readme")
    # the last line says which texts are kept
    ready = "SENSING_CONTEXT_TOKENS=0"
    with serving(home, command="demo", ready=ready, hf_endpoint=hub.url) as served:
        assert served.url in "".join(served.lines)
        yield served.port
        # an idle stop is clean, and leaves no child
        children = served.family()
        assert children
        served.process.terminate()
        assert served.wait() == 0
        assert psutil.wait_procs(children, timeout=60)[1] == []


def run_in_shell(port: int, command: str) -> Any:
    """What a command of the README prints, as JSON."""
    ran = subprocess.run(
        ["bash", "-c", command.replace(":8000", f":{port}")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def run_python(port: int, program: str) -> str:
    """What a program prints that asks the service."""
    ran = run_program("-c", program, STEERSERVE_URL=f"http://127.0.0.1:{port}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_command_of_the_tour_works_in_order(port: int) -> None:
    answers = [
        run_in_shell(port, command)
        for block in blocks("bash")
        for command in re.split(r"\n(?=curl )", block.strip())
    ]
    story, turned_up, steered, attachment, steering, off, *rest = answers
    texts = [one["choices"][0]["message"]["content"] for one in (story, steered)]
    assert [is_of_the_sea(text) for text in texts] == [False, True], texts
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


def test_the_python_examples_write_a_story_and_compare_it(port: int) -> None:
    shown = "\nfor side in _.sides: print(side.text)"
    for example in blocks("python"):
        program = example.replace(":8000", f":{port}")
        if "compare" not in example:
            assert run_python(port, program).strip()
            continue
        compared = program.replace("client.compare", "_ = client.compare") + shown
        plain, steered = run_python(port, compared).splitlines()[-2:]
        assert [is_of_the_sea(text) for text in (plain, steered)] == [False, True]


def in_the_terminal(port: int, *words: str) -> str:
    ran = CliRunner().invoke(main, words, env={"STEERSERVE_URL": f"http://127.0.0.1:{port}"})
    assert ran.exit_code == 0, ran.stderr
    return ran.stdout


def commands_of_the_terminal() -> list[list[str]]:
    return [shlex.split(block.removeprefix("$ steerserve ")) for block in blocks("console")]


def test_the_command_of_the_terminal_writes_a_steered_story(port: int) -> None:
    command, _ = commands_of_the_terminal()
    assert is_of_the_sea(in_the_terminal(port, *command))
    in_the_terminal(port, "steer", "--off")


def test_a_model_and_an_sae_of_the_hub_are_steered_by_one_command(port: int) -> None:
    _, command = commands_of_the_terminal()
    # the tiny model may end its answer after one token
    assert in_the_terminal(port, *command).strip()
    assert json.loads(in_the_terminal(port, "ps", "--json"))["model_name"] == "pythia-70m"
    assert json.loads(in_the_terminal(port, "steer", "--json"))["values"] == {"30": 10.0}
    in_the_terminal(port, "steer", "--off")
    in_the_terminal(port, "run", "demo", "Hello!")


def test_a_model_of_ones_own_is_registered_loaded_and_served(port: int, tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    shutil.copytree(demo.MODEL_DIR, folder)
    (block,) = [block for block in blocks("sh") if "/data/my-model" in block]
    commands = re.split(r"\n(?=curl )", block.strip())
    register = next(command for command in commands if "/data/my-model" in command)
    load = next(command for command in commands if "MODEL_ID" in command)

    added = run_in_shell(port, register.replace("/data/my-model", str(folder)))["data"]
    ask = "curl -s http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d "
    ask += """'{"model": "my-model", "prompt": "One day", "max_tokens": 1}'"""
    # the SAE of the demo is attached
    assert run_in_shell(port, ask)["error"]["code"] == "model_locked"
    loaded = run_in_shell(port, load.replace("MODEL_ID", str(added["id"])))["data"]
    assert loaded["status"] == "loaded"
    assert run_in_shell(port, ask)["model"] == "my-model"


def test_it_opens_with_the_commands_that_need_nothing_before_them() -> None:
    first = re.search(r"```\w*\n(.*?)```", README, re.DOTALL)
    assert first is not None
    commands = [line.partition("#")[0].strip() for line in first[1].splitlines()]
    assert commands == ["make run", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "test"):
        assert re.search(rf"^{target}: \$\(STAMP\) ", makefile, re.MULTILINE), target


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
