"""Runs the service: it opens the port, starts the application, and lets running streams finish before it stops."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil
import structlog

from steerserve import __version__
from steerserve.errors import CannotStart
from steerserve.http import accepting
from steerserve.http import protocol as protocols
from steerserve.http.connections import Connections
from steerserve.logs.setup import say_cannot_start
from steerserve.rules.bounds import RESERVED_CONNECTIONS
from steerserve.settings import Settings
from steerserve.settings import replicas as setting_replicas
from steerserve.settings.checks import misspelt_names, unknown_names

log = structlog.get_logger(__name__)
APPLICATION = "steerserve.app.service:Service"
MAY_PASS, WRONG_SETTING, BUG, STOPPED_AT_ONCE = 1, 2, 3, 130
"""The exit codes of a service that did not stop in order: it could not start, for a reason that may pass; it could not
start until somebody changes a setting or a file; an error inside it ended the start; a second signal stopped it."""
PERSISTING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG})
"""Errors of the system that a later start meets again."""
OTHER_FILES = 512
"""Files that the service may have open beside the connections of clients, where the system allows it."""
OWN_FILES = 128
"""Files that are always left to the service itself: database, engines, helper processes, log, checkpoints."""
LEAST_CONNECTIONS = 16
OTHER_NAMES = ("STEERSERVE_URL", "STEERSERVE_API_KEY", "STEERSERVE_HISTORY")
"""Variables of the environment that the client and the terminal read, and that are no settings."""
SWITCH_SECONDS = 0.0002
"""After this time, a thread that holds the interpreter gives it to another that waits for it. The event loop waits for
it several times in each request. With the 5 ms that Python sets, a thread that reads a large body or writes the metrics
would hold up every request by tens of milliseconds."""
GARBAGE = (5_000, 10, 20)
"""Thresholds of `gc`. With those of Python, one body of many values leads to several collections that look through all
objects of the service. Such a collection takes up to 0.2 s, in which nobody is served."""
FREED_BYTES = 1 << 20
"""Freed memory that the C library may keep at the end of each of its heaps. A larger block is mapped by itself."""
HEAPS = 2
"""Heaps of the C library. Threads share them."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
"""Options of `mallopt` in glibc."""


class Server(accepting.Server):
    """A server that finishes its requests after the first signal to stop, and ends at once after the second. A signal
    before the server listens ends the start, with the exit code 0."""

    _loop: asyncio.AbstractEventLoop | None = None
    _draining: asyncio.Task[None] | None = None
    _reading_keys: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises:
        CannotStart: the database cannot be used. The exception is raised here, because the framework would print an
            exception from the start of the application as a traceback.
        """
        settings = self.config.loaded_app.settings
        _warn_of_unknown_settings()
        if self.connections.limit < settings.max_connections:
            log.warning(
                "too_few_open_files",
                open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                connections=self.connections.limit,
                max_connections=settings.max_connections,
            )
        if settings.is_open:
            log.warning(
                "open_to_other_machines",
                host=settings.host,
                advice="set API_KEYS_FILE, or HOST=127.0.0.1",
            )
        for name, file in settings.open_secret_files:
            log.warning("secret_file_open_to_others", setting=name.upper(), file=str(file))
        await self.config.loaded_app.open()
        await super().startup(sockets)
        if self.started and not self.should_exit:
            # the application exists now, and has configured the logging
            addresses = [_address(one) for one in sockets or ()]
            log.info("listening", addresses=addresses, version=__version__)
            self._heed_hangups(settings)
            # the modules and routes stay; a collection that looked through them would hold up requests for 0.2 s
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GARBAGE)
            gc.enable()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None and self.started and self._draining is None:
            self._loop.call_soon_threadsafe(self._drain)
        elif not self.started and not self.should_exit:
            self.should_exit = True
        else:
            kill_children()
            # the interpreter would wait for threads, and one of them may wait for a disk or an engine
            os._exit(STOPPED_AT_ONCE)

    def _heed_hangups(self, settings: Settings) -> None:
        """Read the keys again after SIGHUP. Without a file of keys the signal ends the process, as a terminal that is
        closed wants it."""
        is_main = threading.current_thread() is threading.main_thread()
        if settings.api_keys_file is not None and is_main:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_keys_again)

    def _read_keys_again(self) -> None:
        self._reading_keys = asyncio.create_task(self.config.loaded_app.read_keys_again())

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self.config.loaded_app.drain()
        finally:
            self.should_exit = True


def run(settings: Settings) -> int:
    """Serve until a signal ends the service, and return the exit code."""
    # the start makes little garbage, and a collection would look through all modules again; `startup` collects it
    gc.disable()
    give_back_freed()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        _check_extra(settings)
        connections = Connections(settings, _allowed_connections(settings.max_connections))
        holding = _hold(settings.steerserve_home)
        for name in ("model_cache_dir", "sae_cache_dir", "lens_cache_dir"):
            _check_folder(getattr(settings, name), name.upper())
        listening = _listen(settings)
    except CannotStart as error:
        return _fail(settings, error)
    server = Server(protocols.configuration(APPLICATION, connections, factory=True), connections)
    with holding:
        try:
            server.run(sockets=[listening])
        except CannotStart as error:
            return _fail(settings, error)
        except Exception as error:  # border of the process
            reason = f"an error inside the service ended it: {type(error).__name__}"
            say_cannot_start(settings.log_format, reason, BUG, error)
            return BUG
        finally:
            kill_children()
    return 0 if server.started or server.should_exit else BUG


def exit_code(error: CannotStart) -> int:
    return MAY_PASS if error.may_pass else WRONG_SETTING


def _fail(settings: Settings, error: CannotStart) -> int:
    """Say why the service cannot start, and return its exit code."""
    say_cannot_start(settings.log_format, str(error), exit_code(error))
    return exit_code(error)


def _is_passing(error: OSError) -> bool:
    is_no_name = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
    return error.errno not in PERSISTING and not is_no_name


def give_back_freed() -> None:
    """Have the C library give freed memory of this process back to the system.

    By itself, the library keeps twice as much in every heap as the largest block that was ever freed, and makes a heap
    for nearly every thread: one large body would raise the memory of the service for good. Without glibc this function
    does nothing.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, HEAPS)
        library.mallopt(_MMAP_THRESHOLD, FREED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, FREED_BYTES)
    except (OSError, AttributeError):
        return


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def kill_children() -> None:
    """End every process that is left of those that this one started. Engines ignore the signals that a terminal sends
    to all its processes."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _warn_of_unknown_settings() -> None:
    """Log the names in `.env` that are not names of settings, and those in the environment that are nearly one, because
    a mistyped name has no effect."""
    file = Path(str(Settings.model_config["env_file"]))
    for name, nearest in unknown_names(file, Settings.model_fields):
        log.warning(
            "unknown_setting", name=name, nearest=nearest and nearest.upper(), file=str(file)
        )
    for name, nearest in misspelt_names(os.environ, (*Settings.model_fields, *OTHER_NAMES)):
        if nearest not in OTHER_NAMES:
            log.warning("unknown_setting", name=name, nearest=nearest, source="the environment")


def _check_folder(folder: Path, name: str) -> None:
    """Make the folder if it is missing.

    Raises:
        CannotStart: the service cannot write into the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotStart(
            f"cannot write into the folder {folder}: {error.strerror}; make it writable, or name another one in {name}",
            may_pass=_is_passing(error),
        ) from None


def _check_extra(settings: Settings) -> None:
    """Raises:
    CannotStart: engines shall run on Ray, and the extra `ray` is not installed.
    """
    missing = setting_replicas.missing_packages() if settings.engine_backend == "ray" else []
    if missing:
        raise CannotStart(
            f"ENGINE_BACKEND=ray needs the extra `ray`, of which {' and '.join(missing)} cannot be found: "
            f"{setting_replicas.EXTRA}"
        )


def _hold(home: Path) -> TextIO:
    """Lock the data folder for this service until the returned file is closed. Without the lock, a second service on
    the same database would reset the statuses of the first at its start.

    Raises:
        CannotStart: the folder cannot be used, or another service uses it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("w")
    except OSError as error:
        raise CannotStart(
            f"cannot use the data folder {home}: {error.strerror}; name another one in STEERSERVE_HOME",
            may_pass=_is_passing(error),
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise CannotStart(
            f"another steerserve uses the data folder {home}; set STEERSERVE_HOME for a second one",
            may_pass=True,
        ) from None
    return lock


def _allowed_connections(wanted: int) -> int:
    """How many connections clients may have open at once: `wanted`, or fewer where this process may not open so many
    files. The limit of open files is raised first, as far as it helps and the system allows.

    Raises:
        CannotStart: too few files would be left to the service itself.
    """
    files = wanted + RESERVED_CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = min(wanted, soft - RESERVED_CONNECTIONS - OWN_FILES)
    least = min(wanted, LEAST_CONNECTIONS)
    if allowed < least:
        raise CannotStart(
            f"this process may open {soft} files, and the service needs "
            f"{least + RESERVED_CONNECTIONS + OWN_FILES}; raise the "
            "limit (`ulimit -n`)"
        )
    return allowed


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        where = f"{settings.host}:{settings.port}"
        raise CannotStart(
            f"cannot listen on {where}: {error.strerror}; choose another HOST or PORT",
            may_pass=_is_passing(error),
        ) from None
    listening.set_inheritable(False)
    return listening
