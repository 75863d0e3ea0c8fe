"""A start that cannot succeed ends in one sentence: it names the setting or the file, and the way out."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from steerserve.app import commands, serve
from steerserve.http.connections import RESERVED


def port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return str(unused.getsockname()[1])


Prepare = Callable[[Path], dict[str, str]]


def newer(home: Path) -> dict[str, str]:
    with closing(sqlite3.connect(home / "steerserve.db")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
        connection.commit()
    return {}


def damaged(home: Path) -> dict[str, str]:
    (home / "steerserve.db").write_bytes(b"x" * 8192)
    return {}


def without_models(home: Path) -> dict[str, str]:
    (home / "file").touch()
    return {"MODEL_CACHE_DIR": str(home / "file" / "models")}


def without_server(_: Path) -> dict[str, str]:
    return {"DATABASE_URL": "postgresql://user:sentinel@127.0.0.1:9/models"}


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (newer, ["steerserve.db", "newer steerserve", "DATABASE_URL"]),
        (damaged, ["steerserve.db", "damaged", "move it away"]),
        (without_models, ["file/models", "MODEL_CACHE_DIR"]),
        (without_server, ["'models' of 127.0.0.1:9", "DATABASE_URL"]),
        (lambda _: {"HF_ENDPOINT": "notaurl"}, ["setting HF_ENDPOINT: ", "https://"]),
    ],
)
def test_a_start_that_cannot_succeed_ends_in_one_sentence(
    tmp_path: Path, prepare: Prepare, words: list[str]
) -> None:
    changes = prepare(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "steerserve", "serve", "--port", port()],
        env=os.environ | {"STEERSERVE_HOME": str(tmp_path), "LOG_LEVEL": "ERROR"} | changes,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode in (1, 2)
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stdout == ""
    for word in words:
        assert word in ran.stderr
    assert "sentinel" not in ran.stderr


def test_the_sentence_about_a_setting_has_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://u:sentinel@h/n")
    with pytest.raises(SystemExit) as ended:
        commands.description()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("setting DATABASE_URL: ")
    assert told.count("\n") == 1
    assert "sentinel" not in told


def test_a_name_in_the_file_of_settings_that_is_none_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "MAX_CONCURENT_REQUESTS=4\nmax_messages=100\nQWERTZUIOP=secret\n"
    )
    monkeypatch.chdir(tmp_path)
    with capture_logs() as warned:
        serve._warn_of_unknown_settings()
    told = [(line["event"], line["name"], line["nearest"]) for line in warned]
    assert told == [
        ("unknown_setting", "MAX_CONCURENT_REQUESTS", "MAX_CONCURRENT_REQUESTS"),
        ("unknown_setting", "QWERTZUIOP", None),
    ]
    assert "secret" not in str(warned)


STOPPED_WHILE_IT_STARTS = """
import os, signal, sys
from steerserve.app import serve
from steerserve.http.connections import RESERVED
from steerserve.app.service import Service
from steerserve.settings import Settings

opened = Service.open

async def open_after_a_signal(service):
    Service.open = opened
    os.kill(os.getpid(), signal.SIGTERM)
    await opened(service)

Service.open = open_after_a_signal
if __name__ == "__main__":
    sys.exit(serve.run(Settings()))
"""


def run_start(folder: Path, program: str) -> str:
    """Run a program that starts a service of its own in the folder, and return what it printed. The program must
    succeed."""
    script = folder / "start.py"
    script.write_text(program)
    ran = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"STEERSERVE_HOME": str(folder / "home"), "PORT": port()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_a_signal_while_the_service_starts_ends_it_quietly(tmp_path: Path) -> None:
    printed = run_start(tmp_path, STOPPED_WHILE_IT_STARTS)
    assert "Traceback" not in printed
    assert "listening" not in printed


@pytest.mark.parametrize(
    ("limits", "raised", "connections"),
    [
        ((256, 4096), 1000 + RESERVED + 512, 1000),
        ((256, 1024), 1024, 1024 - RESERVED - 128),
        ((2000, 4096), None, 1000),
    ],
)
def test_the_limit_of_open_files_is_raised_for_the_connections(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int | None, connections: int
) -> None:
    soft: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: soft.append(values[0]))
    assert serve._allowed_connections(1000) == connections
    assert soft == ([] if raised is None else [raised])
