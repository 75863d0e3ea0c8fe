"""A start that cannot succeed ends in one sentence: it names the setting or the file, and the way out."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest
from structlog.testing import capture_logs

from steerserve import demo
from steerserve.app import commands, serve
from steerserve.database.db import Database
from steerserve.errors import CannotStart
from steerserve.rules.bounds import RESERVED_CONNECTIONS
from tests.processes import free_port

Prepare = Callable[[Path], dict[str, str]]


def of_another_program(home: Path) -> dict[str, str]:
    with closing(sqlite3.connect(home / "steerserve.db")) as connection:
        connection.execute("CREATE TABLE albums (id INTEGER)")
    return {}


def in_use(home: Path) -> dict[str, str]:
    held.append((home / "lock").open("w"))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
    return {}


def with_a_taken_port(_: Path) -> dict[str, str]:
    taken = socket.create_server(("127.0.0.1", 0))
    held.append(taken)
    return {"PORT": str(taken.getsockname()[1])}


held: list[TextIO | socket.socket] = []


def with_settings(own: dict[str, str], _: Path) -> dict[str, str]:
    return own


def with_file(content: bytes, home: Path) -> dict[str, str]:
    (home / ".env").write_bytes(content)
    return {}


def of_version(version: str, home: Path) -> dict[str, str]:
    with closing(sqlite3.connect(home / "steerserve.db")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", [version])
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


WRONG, PASSING = 2, 1
SETTINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "no address": ({"HF_ENDPOINT": "notaurl"}, ["setting HF_ENDPOINT: ", "https://"]),
    "only commas": ({"API_KEYS": ","}, ["setting API_KEYS: ", "has no key"]),
    "empty keys": ({"API_KEYS": ""}, ["setting API_KEYS: ", "remove API_KEYS"]),
    "no file behind @": ({"API_KEYS": "@"}, ["setting API_KEYS: "]),
    "empty file of keys": ({"API_KEYS_FILE": ""}, ["setting API_KEYS_FILE: ", "has no key"]),
    "no origin": (
        {"CORS_ORIGINS": "https://a.example/"},
        ["setting CORS_ORIGINS: 'https://a.example/'", "`*` allows all"],
    ),
    "no host": (
        {"ALLOWED_HOSTS": "gpu.example:8000"},
        ["setting ALLOWED_HOSTS: 'gpu.example:8000'", "without https://, port"],
    ),
    "no folder": (
        {"LOCAL_PATHS": "/data:models"},
        ["setting LOCAL_PATHS: ", "'models' does not begin with /"],
    ),
    "no program": (
        {"GGUF_SERVER_BIN": "/nowhere/llama-server"},
        ["setting GGUF_SERVER_BIN: '/nowhere/llama-server'", "can be run"],
    ),
    "no model of the demo": (
        {"DEMO_MODEL": "/nowhere/model"},
        ["setting DEMO_MODEL: '/nowhere/model' does not exist"],
    ),
    "no checkpoint of the demo": (
        {"DEMO_MODEL": str(demo.saes()[0].path), "DEMO_SAES": str(demo.MODEL_DIR)},
        [f"setting DEMO_MODEL: '{demo.saes()[0].path}' is not the folder of a checkpoint"],
    ),
    "no SAE of the demo": (
        {"DEMO_MODEL": str(demo.MODEL_DIR), "DEMO_SAES": f"{demo.DATA}:/nowhere/sae"},
        ["setting DEMO_SAES: '/nowhere/sae' does not exist"],
    ),
    "a model without its SAE": (
        {"DEMO_MODEL": str(demo.MODEL_DIR)},
        ["DEMO_MODEL", "needs DEMO_SAES"],
    ),
    "an SAE without its model": (
        {"DEMO_SAES": str(demo.saes()[0].path)},
        ["DEMO_SAES", "needs DEMO_MODEL"],
    ),
}
"""Settings with which no service starts, and words of the sentences about them."""
FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty keys of .env": (b"PORT=1\nAPI_KEYS=\n", ["setting API_KEYS: "]),
    "no value": (b"PORT=1\n\nAPI_KEYS sentinel\n", ["/.env: line 3", "NAME=value"]),
    "no equals sign": (b"sentinel\n", ["/.env: line 1"]),
    "no text": (
        "LOG_LEVEL=ERROR # größer".encode("latin-1"),
        ["/.env", "cannot be read", "UTF-8"],
    ),
}
"""Files of settings with which no service starts, and words of the sentences about them."""
OTHERS: dict[str, tuple[Prepare, int, list[str]]] = {
    "newer": (
        partial(of_version, "9999"),
        WRONG,
        ["steerserve.db", "newer steerserve", "DATABASE_URL"],
    ),
    "damaged": (damaged, WRONG, ["steerserve.db", "damaged", "move it away"]),
    "another program": (
        of_another_program,
        WRONG,
        ["steerserve.db", "another program", "'albums'", "DATABASE_URL"],
    ),
    "another program's versions": (
        partial(of_version, "27c6a30d7c24"),
        WRONG,
        ["steerserve.db", "another program", "'27c6a30d7c24'"],
    ),
    "in use": (in_use, PASSING, ["another steerserve", "STEERSERVE_HOME"]),
    "taken port": (
        with_a_taken_port,
        PASSING,
        ["cannot listen on 127.0.0.1:", "choose another HOST or PORT"],
    ),
    "no folder of models": (without_models, WRONG, ["file/models", "MODEL_CACHE_DIR"]),
    "no server": (without_server, PASSING, ["'models' of 127.0.0.1:9", "DATABASE_URL"]),
}
CANNOT: dict[str, tuple[Prepare, int, list[str]]] = (
    OTHERS
    | {name: (partial(with_settings, own), WRONG, words) for name, (own, words) in SETTINGS.items()}
    | {name: (partial(with_file, text), WRONG, words) for name, (text, words) in FILES.items()}
)
"""Starts that cannot succeed, their exit codes, and words of their sentences."""
IN_THE_LOG = {"no address", "no value", "in use", "newer", "bug"}
"""One start of each place in the code that says why there is none: these also say it in the log for machines."""
STARTS = """
import json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from steerserve.app import commands
from steerserve.app.service import Service

async def break_down(service):
    raise KeyError("a bug")

opened = Service.open
plain = dict(os.environ)
ends = {}
for name, changes in json.loads(sys.argv[1]).items():
    os.environ |= changes
    os.chdir(changes["STEERSERVE_HOME"])
    Service.open = break_down if name.startswith("bug") else opened
    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as told:
        try:
            code = commands.run_service(None, None)
        except SystemExit as ended:
            code = ended.code
    ends[name] = [code, said.getvalue(), told.getvalue()]
    os.environ.clear()
    os.environ |= plain
print(json.dumps(ends))
"""
"""Tries one start after the other, because the imports of a process take longer than all starts."""


@pytest.fixture(scope="module")
def ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[int, str, str]]]:
    """The exit code, the output and the sentence of each start."""
    starts = {}
    for name, (prepare, _, _) in (CANNOT | {"bug": (lambda _: {}, 3, [])}).items():
        for form in ("console", "json") if name in IN_THE_LOG else ("console",):
            home = tmp_path_factory.mktemp("home")
            own = {"STEERSERVE_HOME": str(home), "LOG_LEVEL": "ERROR", "PORT": str(free_port())}
            starts[f"{name} {form}"] = own | {"LOG_FORMAT": form} | prepare(home)
    yield json.loads(run_program(tmp_path_factory.mktemp("starts"), STARTS, json.dumps(starts)))
    for one in held:
        one.close()


@pytest.mark.parametrize("name", CANNOT)
def test_a_start_that_cannot_succeed_ends_in_one_sentence(
    ends: dict[str, tuple[int, str, str]], name: str
) -> None:
    _, expected, words = CANNOT[name]
    code, output, sentence = ends[f"{name} console"]
    assert code == expected
    assert sentence.count("\n") == 1, sentence
    assert output == ""
    for word in words:
        assert word in sentence
    assert "sentinel" not in sentence


@pytest.mark.parametrize("name", sorted(IN_THE_LOG - {"bug"}))
def test_the_sentence_is_a_line_of_the_log_for_machines(
    ends: dict[str, tuple[int, str, str]], name: str
) -> None:
    code, _, logged = ends[f"{name} json"]
    assert code == CANNOT[name][1]
    line = json.loads(logged)
    assert (line["event"], line["level"], line["exit_code"]) == ("cannot_start", "error", code)
    for word in CANNOT[name][2]:
        assert word in line["reason"]


def test_an_error_inside_the_service_ends_its_start_with_a_code_of_its_own(
    ends: dict[str, tuple[int, str, str]],
) -> None:
    code, _, told = ends["bug console"]
    assert code == 3
    assert "KeyError: 'a bug'" in told
    code, _, logged = ends["bug json"]
    assert code == 3
    line = json.loads(logged)
    assert (line["event"], line["exit_code"]) == ("cannot_start", 3)
    assert "KeyError: 'a bug'" in line["exception"]


def test_the_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    of_another_program(tmp_path)
    file = tmp_path / "steerserve.db"
    before = file.read_bytes()
    with pytest.raises(CannotStart):
        asyncio.run(Database(f"sqlite+aiosqlite:///{file}").open())
    assert file.read_bytes() == before
    assert not file.with_name("steerserve.db-reserve").exists()


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


def test_a_name_that_is_no_setting_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "MAX_CONCURENT_REQUESTS=4\nmax_messages=100\nQWERTZUIOP=secret\n"
    )
    monkeypatch.chdir(tmp_path)
    misspelt = {"API_KEY": "secret", "ALOWED_HOSTS": "x", "STEERSERV_HOME": "/x"}
    for name, value in (misspelt | {"HF_TOKEN": "x", "HOSTS": "x", "STEERSERVE_URLS": "x"}).items():
        monkeypatch.setenv(name, value)
    with capture_logs() as warned:
        serve._warn_of_unknown_settings()
    told = [(line["event"], line["name"], line["nearest"]) for line in warned]
    told[2:] = sorted(told[2:], key=lambda line: -list(misspelt).index(line[1]))[::-1]
    assert told == [
        ("unknown_setting", "MAX_CONCURENT_REQUESTS", "MAX_CONCURRENT_REQUESTS"),
        ("unknown_setting", "QWERTZUIOP", None),
        ("unknown_setting", "API_KEY", "API_KEYS"),
        ("unknown_setting", "ALOWED_HOSTS", "ALLOWED_HOSTS"),
        ("unknown_setting", "STEERSERV_HOME", "STEERSERVE_HOME"),
    ]
    assert "secret" not in str(warned)


STOPPED_WHILE_IT_STARTS = """
import os, signal, sys
from steerserve.app import serve
from steerserve.http.connections import RESERVED_CONNECTIONS
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


def run_program(folder: Path, program: str, *words: str) -> str:
    """Run a program that starts a service of its own in the folder, and return what it printed. The program must
    succeed."""
    script = folder / "start.py"
    script.write_text(program)
    ran = subprocess.run(
        [sys.executable, str(script), *words],
        env=os.environ | {"STEERSERVE_HOME": str(folder / "home"), "PORT": str(free_port())},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_a_signal_while_the_service_starts_ends_it_quietly(tmp_path: Path) -> None:
    printed = run_program(tmp_path, STOPPED_WHILE_IT_STARTS)
    assert "Traceback" not in printed
    assert "listening" not in printed


@pytest.mark.parametrize(
    ("limits", "raised", "connections"),
    [
        ((256, 4096), 1000 + RESERVED_CONNECTIONS + 512, 1000),
        ((256, 1024), 1024, 1024 - RESERVED_CONNECTIONS - 128),
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


def test_a_service_that_may_open_too_few_files_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(CannotStart) as ended:
        serve._allowed_connections(1000)
    assert serve.exit_code(ended.value) == WRONG
    assert str(ended.value) == (
        "this process may open 100 files, and the service needs 208; raise the limit (`ulimit -n`)"
    )
