"""The settings with secrets. Each can be given as text, or as the path of a file that has the text.

A file is the better way: the environment of a process can be read by every process of the same user, as long as the
process runs. No sentence here repeats a secret.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode

from steerserve.settings import checks as values
from steerserve.settings.limits import read_by

FILE_MAXIMUM = 65_536
"""Bytes that a file with a secret may have."""

SUFFIX = "_file"
NAMES = ("hub_token", "api_keys", "database_url")

_OTHERS = stat.S_IROTH | stat.S_IWOTH


def secret_file(file: Path | None) -> Path | None:
    """The path of a file whose text can be read.

    Raises:
        ValueError: the file is missing, is no regular file, cannot be read, is empty, or is too large.
    """
    if file is None:
        return None
    file = file.expanduser().absolute()
    read(file)
    return file


def read(file: Path) -> str:
    """The text of a file without the blanks around it.

    Raises:
        ValueError: as `secret_file`.
    """
    try:
        # without waiting, because a pipe would keep the service from starting
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            raw = os.read(descriptor, FILE_MAXIMUM + 1) if is_regular else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ValueError(f"the file {file} cannot be read: {error.strerror}") from None
    if not is_regular:
        raise ValueError(f"{file} is no regular file")
    if len(raw) > FILE_MAXIMUM:
        raise ValueError(f"the file {file} is larger than {FILE_MAXIMUM} bytes")
    try:
        text = raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError(f"the file {file} cannot be read: its text is not UTF-8") from None
    if not text:
        raise ValueError(f"the file {file} is empty")
    return text


def keys_in(file: Path) -> list[SecretStr]:
    """The keys in a file, one on each line.

    Raises:
        ValueError: as `secret_file`; or a key has characters that a header cannot carry.
    """
    return _lines(read(file))


def _lines(text: str) -> list[SecretStr]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [SecretStr(key) for key in values.api_keys(lines)]


def is_open_to_others(file: Path) -> bool:
    """Whether accounts other than the owner and the group of a file may read or write it."""
    try:
        return bool(file.stat().st_mode & _OTHERS)
    except OSError:
        return False


def _token(token: SecretStr | None) -> SecretStr | None:
    """Raises:
    ValueError: the token has characters that a header cannot carry.
    """
    text = token.get_secret_value().strip() if token else ""
    if text and not values.KEY.fullmatch(text):
        raise ValueError("a token consists of letters, digits and signs of ASCII, without blanks")
    return SecretStr(text) if text else None


_KEYLESS = (
    "setting {0}: it is set and has no key, so every client would be served; give keys, or remove {0} for a service "
    "without keys"
)
SecretFile = Annotated[
    Path | None,
    BeforeValidator(lambda text: text or None),
    AfterValidator(secret_file),
]
Keys = Annotated[
    list[SecretStr], NoDecode, read_by(lambda text: values.api_keys(values.parts(text)))
]


class Secrets(BaseSettings, use_attribute_docstrings=True):
    """The settings with secrets. `Settings` has them among the other settings."""

    api_keys: Keys = []
    """Keys, separated by commas. Every request except liveness and readiness must carry one as `Authorization: Bearer
    <key>`. `@` and a path mean the same as API_KEYS_FILE. A text without a key is refused."""
    api_keys_file: SecretFile = None
    """File with the keys, one on each line, in place of API_KEYS."""
    database_url: Annotated[str, AfterValidator(values.database_url)] = ""
    """URL of the database; by default a SQLite file in STEERSERVE_HOME. SQLite: sqlite:////folder/file.db. PostgreSQL:
    postgresql://user:password@host/name, which needs the extra `postgres`."""
    database_url_file: SecretFile = None
    """File with the URL of the database, in place of DATABASE_URL."""
    hub_token: Annotated[SecretStr | None, AfterValidator(_token)] = None
    """Token sent to the model hub with requests that bring none of their own. Never logged or stored."""
    hub_token_file: SecretFile = None
    """File with the token for the model hub, in place of HUB_TOKEN."""

    @model_validator(mode="before")
    @classmethod
    def _read_keys_behind_at(cls, given: object) -> object:
        """Take `@` and a path in API_KEYS for API_KEYS_FILE.

        Raises:
            ValueError: API_KEYS or API_KEYS_FILE is set without a key. Whoever sets one wants a closed service.
        """
        if not isinstance(given, dict):
            return given
        text, file = given.get("api_keys"), given.get("api_keys_file")
        has_file = file is not None and bool(str(file).strip())
        if isinstance(text, str):
            if text.strip() in ("", "@") or not values.parts(text):
                if not has_file:
                    raise ValueError(_KEYLESS.format("API_KEYS"))
                return {name: value for name, value in given.items() if name != "api_keys"}
            if text.startswith("@") and not has_file:
                kept = {name: value for name, value in given.items() if name != "api_keys"}
                return kept | {"api_keys_file": text[1:]}
        if file is not None and not has_file and not text:
            raise ValueError(_KEYLESS.format("API_KEYS_FILE"))
        return given

    @model_validator(mode="after")
    def _read_files(self) -> Secrets:
        """Take each secret whose file is named from that file.

        Raises:
            ValueError: a secret is given in both ways, or the text of its file is not such a secret.
        """
        for name in NAMES:
            file: Path | None = getattr(self, name + SUFFIX)
            if file is None:
                continue
            upper = name.upper()
            if getattr(self, name):
                raise ValueError(f"{upper} and {upper}_FILE are both set; keep one of them")
            try:
                setattr(self, name, _VALUE_OF[name](read(file)))
            except ValueError as error:
                raise ValueError(f"setting {upper}_FILE: the file {file}: {error}") from None
        return self

    @property
    def open_secret_files(self) -> list[tuple[str, Path]]:
        """The settings whose secret file is open to other accounts, with the file."""
        files = [(name + SUFFIX, getattr(self, name + SUFFIX)) for name in NAMES]
        return [(name, file) for name, file in files if file and is_open_to_others(file)]


def _one_line(text: str) -> str:
    if len(text.split()) != 1:
        raise ValueError("its text is more than one word")
    return text


_VALUE_OF: dict[str, Callable[[str], object]] = {
    "hub_token": lambda text: _token(SecretStr(_one_line(text))),
    "database_url": lambda text: values.database_url(_one_line(text)),
    "api_keys": _lines,
}
