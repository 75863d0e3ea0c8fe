"""Checks of single settings: each takes the text of a setting and gives the value that the service uses.

A check raises ValueError with a sentence for the person who starts the service. No sentence repeats a value that may
hold a secret.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from io import StringIO
from ipaddress import ip_address, ip_network
from pathlib import Path
from shutil import which
from urllib.parse import SplitResult, parse_qsl, urlsplit

from dotenv import dotenv_values
from dotenv.parser import parse_stream

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
"""Scheme of a database URL -> the same scheme with the driver that the service uses."""
_FORMS = (
    "the forms are sqlite:///folder/file.db, sqlite:////absolute/folder/file.db and "
    "postgresql://user:password@host:5432/name"
)
_SSL_MODE = re.compile(r"(?<=[?&])sslmode=")
_OPTIONS = frozenset({"sslmode", "ssl", "target_session_attrs"})
_LEAST_LETTERS = 8
"""Letters of a name without `_` from which it is compared with the names of settings."""
_NEAR = 0.85
"""The likeness of two names (of `difflib`) from which one is taken for the other, misspelt."""
KEY = re.compile(r"[\x21-\x7e]+", re.ASCII)


def database_url(text: str) -> str:
    """The URL of a database with its asynchronous driver; empty text stays empty.

    Raises:
        ValueError: the URL is not one of SQLite or PostgreSQL.
    """
    if not text:
        return text
    scheme, separator, rest = text.strip().partition("://")
    driver = _DRIVERS.get(scheme.lower().partition("+")[0])
    if not separator or driver is None:
        raise ValueError(f"the text is not the URL of a SQLite or PostgreSQL database; {_FORMS}")
    if scheme.lower().startswith("sqlite"):
        if not rest.startswith("/") or rest in ("/", "/:memory:"):
            raise ValueError(f"a SQLite URL names a file behind three slashes; {_FORMS}")
        return f"{driver}://{rest}"
    _check_server(rest)
    # usual PostgreSQL URLs name this option `sslmode`, and the driver names it `ssl`
    return f"{driver}://{_SSL_MODE.sub('ssl=', rest)}"


def _check_server(rest: str) -> None:
    """Raises:
    ValueError: the part of a PostgreSQL URL behind `://` names no server, no port or no database.
    """
    parts = SplitResult("", "", "", "", "")
    try:
        parts = urlsplit(f"//{rest}")
        is_whole = bool(parts.hostname) and bool(parts.path.strip("/"))
        _ = parts.port
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError(
            "a PostgreSQL URL names a host, a port in digits where it is not 5432, and a database; special characters "
            f"in the password are written as %XX; {_FORMS}"
        )
    _check_options(parts.query)


def _check_options(query: str) -> None:
    """Raises:
    ValueError: an option that the driver does not know.
    """
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ValueError(
                f"the option {name[:50]!r} is not supported; those that are: {', '.join(sorted(_OPTIONS))}"
            )


def hub_endpoint(text: str) -> str:
    """The address of the model hub.

    Raises:
        ValueError: the text is not an http or https address.
    """
    return _address(text, "a model hub")


def _address(text: str, what: str) -> str:
    address = text.strip().rstrip("/")
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"the address of {what} begins with https:// or http:// and a host")
    return address


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def chat_endpoint(text: str) -> tuple[str, str | None]:
    """The address of an OpenAI-compatible endpoint, and the variable with its key: `https://host/v1=NAME`, or the
    address alone.

    Raises:
        ValueError: the text is no such address, or the name is none of a variable.
    """
    address, separator, name = text.strip().partition("=")
    address = _address(address, "an endpoint")
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the address of an endpoint has no user, no query and no fragment")
    if separator and not _VARIABLE.fullmatch(name):
        raise ValueError("behind the address and `=` comes the name of an environment variable")
    return address, name or None


def tensor_split(text: str) -> str:
    """Proportions over the cards, separated by commas; empty text stays empty.

    Raises:
        ValueError: a part is not a number of at least 0, or all are 0.
    """
    if not text.strip():
        return ""
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not parts or not all(0 <= part < math.inf for part in parts) or not any(parts):
        raise ValueError(
            "the proportions are numbers of at least 0 separated by commas, one for each card and not all 0, "
            "for example 3,1"
        )
    return text.strip()


def parts(text: str) -> list[str]:
    """The parts of a list that is separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def folders(text: str) -> list[Path]:
    """The folders of a list that is separated by colons. Empty text is no folder.

    Raises:
        ValueError: a folder is not absolute, or is a system folder other than `/`.
    """
    found = [Path(part.strip()).expanduser() for part in text.split(":") if part.strip()]
    for folder in found:
        if not folder.is_absolute():
            raise ValueError(f"the folder {str(folder)[:200]!r} does not begin with /")
    return found


def present(text: str) -> list[Path]:
    """The folders and files of a list that is separated by colons, all of which are there. Empty text is none.

    Raises:
        ValueError: one is not there.
    """
    found = [Path(part.strip()).expanduser().absolute() for part in text.split(":") if part.strip()]
    for path in found:
        if not path.exists():
            raise ValueError(f"{str(path)[:200]!r} does not exist")
    return found


def checkpoint(text: str) -> Path | None:
    """The folder of a checkpoint; empty text is none.

    Raises:
        ValueError: it is not there, or has no `config.json`.
    """
    if not text.strip():
        return None
    folder = Path(text.strip()).expanduser().absolute()
    if not folder.exists():
        raise ValueError(f"{str(folder)[:200]!r} does not exist")
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{str(folder)[:200]!r} is not the folder of a checkpoint: it has no `config.json`"
        )
    return folder


def networks(texts: list[str]) -> list[str]:
    """Addresses and networks.

    Raises:
        ValueError: a text is neither.
    """
    for text in texts:
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise ValueError(
                f"{text[:50]!r} is neither an address nor a network; examples are 10.0.0.1, 10.0.0.0/8 and fd00::/8"
            ) from None
    return texts


def api_keys(keys: list[str]) -> list[str]:
    """Keys, each of which a header can carry.

    Raises:
        ValueError: a key has characters that a header cannot carry.
    """
    if not all(map(KEY.fullmatch, keys)):
        raise ValueError("a key consists of letters, digits and signs of ASCII, without blanks")
    return keys


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?")


def origins(given: list[str]) -> list[str]:
    """Origins of web pages, as browsers send them.

    Raises:
        ValueError: a text is no origin, so it would never be the one of a page.
    """
    found = [origin.lower() for origin in given]
    for origin in found:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin[:200]!r} is no origin: an origin is https://host or http://host:port, without a path and "
                "without a slash at its end; `*` allows all"
            )
    return found


def hosts(given: list[str]) -> list[str]:
    """Names or addresses of hosts.

    Raises:
        ValueError: a text is neither, so no Host header would be equal to it.
    """
    for host in given:
        if not _HOST.fullmatch(host) and not is_address(host):
            raise ValueError(
                f"{host[:200]!r} is no host: write the name alone, such as gpu.example.org, without https://, port, "
                "path and wildcards"
            )
    return given


def is_address(host: str) -> bool:
    """Whether the name of a host is an IP address."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def program(text: str | None) -> str | None:
    """The path of a program; empty text is none.

    Raises:
        ValueError: it is not there, or cannot be run.
    """
    if not text or not text.strip():
        return None
    if which(text) is None:
        raise ValueError(f"{text[:200]!r} is no program that can be run")
    return text


def check_file(file: Path) -> None:
    """Raises:
    ValueError: the file of settings is there, and cannot be read, or has a line that is no setting. No text of the
        file is told, because it may be a secret.
    """
    try:
        if file.is_file():
            for line in parse_stream(StringIO(file.read_text(encoding="utf-8"))):
                if line.error or (line.key is not None and line.value is None):
                    # blank lines before the setting belong to it
                    blank = len(line.original.string) - len(line.original.string.lstrip())
                    number = line.original.line + line.original.string[:blank].count("\n")
                    raise ValueError(
                        f"the file of settings {file.absolute()}: line {number} is no setting, which has the form "
                        "NAME=value"
                    )
    except OSError as error:
        raise ValueError(
            f"the file of settings {file.absolute()} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        wrong = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"the file of settings {file.absolute()} cannot be read: line {wrong} is not UTF-8"
        ) from None


def log_format(file: Path) -> str:
    """The LOG_FORMAT of the environment or the file of settings, also where other settings are wrong."""
    try:
        given = dotenv_values(file) if file.is_file() else {}
    except (OSError, UnicodeDecodeError):
        given = {}
    found = {name.upper(): value for name, value in (*given.items(), *os.environ.items())}
    return (found.get("LOG_FORMAT") or "").lower()


def names_in(file: Path) -> set[str]:
    """The names of settings in a file of settings, in lower case."""
    return {name.lower() for name in dotenv_values(file)} if file.is_file() else set()


def unknown_names(file: Path, known: Iterable[str]) -> list[tuple[str, str | None]]:
    """The names in a file of settings that are not names of settings, each with the nearest name of a setting."""
    if not file.is_file():
        return []
    names = {name.upper(): name for name in known}
    return [
        (name, next(iter(get_close_matches(name.upper(), names, 1)), None))
        for name in dotenv_values(file)
        if name.upper() not in names
    ]


def misspelt_names(given: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """The variables of the environment that are nearly names of settings, each with that name. Most variables belong to
    other programs, so short names and names that are only a little like a setting are left out."""
    names = {name.upper() for name in known}
    found = []
    for name in given:
        upper = name.upper()
        if upper in names or not (len(upper) >= _LEAST_LETTERS or "_" in upper):
            continue
        if near := get_close_matches(upper, names, 1, _NEAR):
            found.append((name, near[0]))
    return found
