"""Starts a service on this machine for the terminal, and stops the one that was started so."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import platformdirs
import psutil

from steerserve.client import Client, ServiceError, ServiceUnreachable
from steerserve.terminal import output

START_SECONDS = 120.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.2
RECORD, LOG = "terminal.json", "terminal.log"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INSTALL = 'pip install "steerserve[serve]"'
"""The line that installs the service."""


class Started(msgspec.Struct, frozen=True):
    """The service that the terminal started: its process, when that began, and its address."""

    pid: int
    created: float
    url: str


decoded = msgspec.json.Decoder(Started).decode


def home() -> Path:
    """The data folder of the service on this machine."""
    named = os.environ.get("STEERSERVE_HOME")
    return Path(named).expanduser() if named else Path(platformdirs.user_data_dir("steerserve"))


def answers(client: Client) -> bool:
    """Whether a service answers at the address."""
    try:
        client.health.live()
    except ServiceUnreachable:
        return False
    return True


def start(client: Client, *, has_demo: bool) -> None:
    """Start a service at the address of the client, and wait until it answers. It goes on after the terminal is closed,
    and writes its log to `terminal.log` in the data folder.

    Raises:
        ServiceUnreachable: the address is none of this machine, or the service is not installed or does not start.
    """
    place = urlsplit(client.base_url)
    if place.hostname not in LOOPBACK or place.scheme != "http":
        raise ServiceUnreachable(f"no service answers at {client.base_url}")
    if importlib.util.find_spec("steerserve.app") is None:
        raise ServiceUnreachable(
            f"no service answers at {client.base_url}, and none is installed here: {INSTALL}"
        )
    output.note(f"starting a service at {client.base_url}; `steerserve stop` stops it")
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    command = "demo" if has_demo else "serve"
    where = ["--host", place.hostname, "--port", str(place.port or 80)]
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 -- this program itself
            [sys.executable, "-m", "steerserve", command, *where],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    began = Started(process.pid, psutil.Process(process.pid).create_time(), client.base_url)
    (folder / RECORD).write_bytes(msgspec.json.encode(began))
    ending = time.monotonic() + START_SECONDS
    while not _is_up(client, has_demo=has_demo):
        if process.poll() is not None or time.monotonic() > ending:
            raise ServiceUnreachable(f"the service did not start; {folder / LOG} says why")
        time.sleep(LOOK_SECONDS)


def _is_up(client: Client, *, has_demo: bool) -> bool:
    """Whether the service answers; a demo service also has its model and its SAE then."""
    try:
        health = client.health.detailed()
    except ServiceError:
        return False
    return not has_demo or (health.model_loaded and health.sae_attached)


def stop() -> Started:
    """Stop the service that the terminal started; it finishes its requests first.

    Raises:
        ServiceError: none that runs was started so, or it did not stop.
    """
    record = home() / RECORD
    try:
        began = decoded(record.read_bytes())
        process = psutil.Process(began.pid)
        is_it = abs(process.create_time() - began.created) < 1
    except (OSError, msgspec.MsgspecError, psutil.NoSuchProcess):
        is_it = False
    if not is_it:
        record.unlink(missing_ok=True)
        raise ServiceUnreachable("no service runs that `steerserve run` started")
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except psutil.TimeoutExpired:
        raise ServiceError(f"the process {began.pid} did not stop in {STOP_SECONDS:g} s") from None
    record.unlink(missing_ok=True)
    return began
