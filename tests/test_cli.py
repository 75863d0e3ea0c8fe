"""The command line, used as a person uses it."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import Result
from typer.testing import CliRunner

from steerserve import build, demo
from steerserve.cli import main
from tests.processes import run_command


def run(home: Path, *arguments: str, **settings: str) -> Result:
    """What a command says and how it exits. It runs in this process, which has the libraries already."""
    # a command that starts the service puts its options into the environment
    with patch.dict(os.environ):
        return CliRunner().invoke(main, arguments, env={"STEERSERVE_HOME": str(home)} | settings)


def test_doctor_says_what_the_machine_can_do(tmp_path: Path) -> None:
    ran = run(tmp_path, "doctor", HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.exit_code == 0, ran.stderr
    for fact in (
        "cards:",
        "processor:",
        "memory:",
        "disk:",
        "engines:",
        "libraries:",
        "hub:",
        "listens on:",
    ):
        assert fact in ran.stdout
    assert "cannot be reached" in ran.stdout
    assert not (tmp_path / "steerserve.db").exists()
    assert "settings: good" in ran.stdout
    assert "the first start makes it" in ran.stdout
    told = json.loads(run(tmp_path, "doctor", "--json", HF_ENDPOINT="http://127.0.0.1:9").stdout)
    assert {"steerserve", "cards", "memory", "replicas", "listens_on"} <= set(told)
    assert "cannot be reached" in told["hub"]


def test_doctor_names_a_wrong_setting(tmp_path: Path) -> None:
    ran = run(tmp_path, "doctor", "--json", PORT="many")
    assert ran.exit_code == 2
    told = json.loads(ran.stdout)
    assert "setting PORT" in told["settings"]
    assert told["faults"] == ["settings"]
    assert "processor" in told


def test_doctor_fails_where_the_database_cannot_be_used(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "steerserve.db")) as connection:
        connection.execute("CREATE TABLE albums (id INTEGER)")
    ran = run(tmp_path, "doctor", HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.exit_code == 2
    assert "database: cannot use the database" in ran.stdout
    assert "another program" in ran.stdout


def test_openapi_describes_every_route_without_starting_anything(tmp_path: Path) -> None:
    ran = run(tmp_path, "openapi")
    assert ran.exit_code == 0, ran.stderr
    paths = json.loads(ran.stdout)["paths"]
    assert {"/v1/chat/completions", "/api/models", "/api/saes/steering", "/api/health"} <= set(
        paths
    )
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "messages" in body["schema"]["required"]


def test_a_command_that_needs_the_service_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(name='uvicorn')")
    ran = run_command(
        "serve", STEERSERVE_HOME=str(tmp_path), PYTHONPATH=":".join([str(tmp_path), *sys.path])
    )
    assert ran.returncode == 2
    assert 'pip install "steerserve[serve]"' in ran.stderr


def test_a_service_of_another_build_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "service_version", lambda: "0.0.1")
    ran = CliRunner().invoke(main, ["openapi"])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "the service is 0.0.1" in ran.stderr


def test_the_version_and_help_need_no_service(tmp_path: Path) -> None:
    assert run_command("--version").stdout.startswith("steerserve ")
    assert "demo" in run(tmp_path, "--help").stdout


def test_the_demo_refuses_a_wrong_path_before_anything_starts(tmp_path: Path) -> None:
    ran = run(tmp_path, "demo", "--model", str(demo.MODEL_DIR), "--sae", str(tmp_path / "none"))
    assert ran.exit_code == 2
    assert f"'{tmp_path / 'none'}' does not exist" in ran.stderr
    assert not list(tmp_path.iterdir())
