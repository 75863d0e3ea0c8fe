"""Secrets from files: they are read, checked, told apart from those of the environment, and never shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from steerserve.app import doctor
from steerserve.settings import Settings
from steerserve.settings.secrets import FILE_MAXIMUM, NAMES
from tests.processes import run_program
from tests.settings.made import made

SECRETS = {
    "hub_token": "hf_sentinel",
    "api_keys": "sentinel",
    "database_url": "postgresql://u:sentinel@h/n",
}


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name.upper(), raising=False)


def plain(settings: Settings, name: str) -> str:
    match name:
        case "hub_token":
            assert settings.hub_token is not None
            return settings.hub_token.get_secret_value()
        case "api_keys":
            return ",".join(key.get_secret_value() for key in settings.api_keys)
        case _:
            return settings.database_url


def refused(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        made(**changes)
    assert "sentinel" not in str(caught.value)
    (problem,) = caught.value.errors()
    return f"{'.'.join(map(str, problem['loc'])).upper()} {problem['msg']}"


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> Path:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(0o600)
        return file

    return write


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_comes_from_its_file(
    name: str, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(name, f"\ufeff {SECRETS[name]}\r\n")
    monkeypatch.setenv(f"{name.upper()}_FILE", str(file))
    settings = made()
    monkeypatch.undo()
    assert plain(settings, name) == plain(made(**{name: SECRETS[name]}), name)
    assert "sentinel" not in repr(settings.hub_token) + repr(settings.api_keys)
    assert settings.open_secret_files == []


def test_keys_are_the_lines_of_their_file(written: Any) -> None:
    file = written("keys", "one\n\n two \n")
    assert plain(made(api_keys_file=file), "api_keys") == "one,two"
    assert plain(made(api_keys=f"@{file}"), "api_keys") == "one,two"
    # an empty setting beside the file opens nothing
    assert plain(made(api_keys="", api_keys_file=file), "api_keys") == "one,two"
    assert plain(made(api_keys="one", api_keys_file=""), "api_keys") == "one"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_without_a_secret_ends_the_start_with_its_setting(
    name: str, written: Any, tmp_path: Path
) -> None:
    setting = f"{name}_file"
    os.mkfifo(tmp_path / "pipe")
    bad = {
        tmp_path / "missing": "cannot be read: No such file",
        tmp_path: "is no regular file",
        tmp_path / "pipe": "is no regular file",
        written("empty", " \n"): "is empty",
        written("large", b"a" * (FILE_MAXIMUM + 1)): "is larger than 65536 bytes",
        written("latin", b"sentinel\xe9"): "its text is not UTF-8",
    }
    for file, reason in bad.items():
        message = refused(**{setting: str(file)})
        assert message.startswith(setting.upper())
        assert reason in message


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_a_file_is_checked_like_the_setting(name: str, written: Any) -> None:
    message = refused(**{f"{name}_file": written("bad", "sentinel two\u00e9\nthree")})
    assert f"setting {name.upper()}_FILE: the file " in message


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_that_is_given_twice_is_refused(name: str, written: Any) -> None:
    file = written("one", SECRETS[name])
    message = refused(**{name: SECRETS[name], f"{name}_file": file})
    assert f"{name.upper()} and {name.upper()}_FILE are both set" in message
    assert plain(made(**{name: "", f"{name}_file": file}), name)
    assert made(**{name: SECRETS[name], f"{name}_file": ""})


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    assert "letters, digits and signs" in refused(hub_token="sentinel\u00e9")
    assert made(hub_token=" ").hub_token is None


def test_the_doctor_tells_where_secrets_come_from_and_none_of_them(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written("token", SECRETS["hub_token"])
    monkeypatch.setenv("API_KEYS", SECRETS["api_keys"])
    told = doctor.secrets(made(hub_token_file=file))
    assert f"HUB_TOKEN from the file {file};" in told
    assert "API_KEYS from the environment" in told
    assert "DATABASE_URL not set" in told
    assert "sentinel" not in told
    file.chmod(0o644)
    told = doctor.secrets(made(hub_token_file=file))
    assert "other accounts can open" in told


START = """
import sys
from pathlib import Path
from steerserve.app.service import Service
from steerserve.settings import Settings

service = Service()
for name, file in service.settings.open_secret_files:
    print("open", name, file)
print(service.settings.hub_token.get_secret_value(), len(service.settings.api_keys))
print(Path("/proc/self/environ").read_text())
"""


def test_the_environment_of_the_service_has_no_secret_of_a_file(
    written: Any, tmp_path: Path
) -> None:
    token, keys = written("token", "hf_sentinel"), written("keys", "sentinel")
    keys.chmod(0o604)
    done = run_program(
        *("-c", START),
        HUB_TOKEN_FILE=str(token),
        API_KEYS_FILE=str(keys),
        STEERSERVE_HOME=str(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stderr
    opened, values, seen = done.stdout.split("\n", 2)
    assert opened == f"open api_keys_file {keys}"
    assert values == "hf_sentinel 1"
    assert "sentinel" not in seen
