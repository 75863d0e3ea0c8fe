"""The sessions of a PostgreSQL server: how this process names its own, when the server ends dead ones, and which
session has the lock of a service.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

_IDLE, _INTERVAL, _COUNT = 5, 3, 3
DEAD_SECONDS = _IDLE + _INTERVAL * _COUNT
"""Seconds after which the server ends the session of a client that it cannot reach. With the defaults of the system it
would take hours."""
KEEPALIVES = {
    "tcp_keepalives_idle": str(_IDLE),
    "tcp_keepalives_interval": str(_INTERVAL),
    "tcp_keepalives_count": str(_COUNT),
    "tcp_user_timeout": str(1000 * DEAD_SECONDS),
}
"""Settings of the server for every new connection, and their values."""
PREPARE = """
SELECT set_config(wanted.name, wanted.value, false)
FROM unnest($1::text[], $2::text[]) AS wanted (name, value) JOIN pg_settings USING (name)
"""
"""What every new connection runs with these names and values. An older server does not know all of the names."""
_HOLDER = """
SELECT pid, backend_start, application_name, host(client_addr) AS address, state_change
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = 0 AND objid = :key AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_OWN = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_NAME = re.compile(
    r"steerserve on (?P<host>.*) pid (?P<pid>\d+) (?P<machine>[0-9a-f]{8})\.(?P<start>\d+)"
)
_NAME_LENGTH = 63
"""Bytes of the name of a session; the server cuts the rest."""
_END_POLLS = 10
_END_SECONDS = 0.05
"""The server needs a moment to end a session."""


@dataclass(frozen=True, slots=True)
class Session:
    """The session that has a lock. Fields that another role may not read are None.

    Attributes:
        pid: the number of the session at the server, which a later session may have too.
        backend_start: when the session began.
        application_name: what the client named it; see `own_name`.
        address: of the client as the server sees it; None over a socket of the same machine.
        state_change: when the last statement of the session began or ended.
    """

    pid: int
    backend_start: datetime | None
    application_name: str | None
    address: str | None
    state_change: datetime | None

    @property
    def key(self) -> tuple[int, datetime | None]:
        return self.pid, self.backend_start

    @property
    def sentence(self) -> str:
        """Who has the session, for people."""
        named = _NAME.fullmatch(self.application_name or "")
        who = (
            f"process {named['pid']} on host {named['host']!r}"
            if named
            else f"{self.application_name or 'a client'!r}"
        )
        address = f" from {self.address}" if self.address else ""
        return f"{who}{address}, session {self.pid} of the PostgreSQL server"

    @property
    def has_dead_process(self) -> bool:
        """Whether the session is of a process that has run on this machine, and has ended."""
        named = _NAME.fullmatch(self.application_name or "")
        if named is None or _machine() is None or named["machine"] != _machine():
            return False
        return _started(int(named["pid"])) != named["start"]

    def has_lived_since(self, before: Session) -> bool:
        return self.key == before.key and self.state_change != before.state_change


@cache
def own_name() -> str:
    """The name of the sessions of this process. It tells people the host and the process, and a service that starts
    whether this process still runs."""
    end = f" pid {os.getpid()} {_machine() or '0' * 8}.{_started(os.getpid()) or 0}"
    begin = f"steerserve on {socket.gethostname()}".encode("ascii", "replace").decode()
    return begin[: _NAME_LENGTH - len(end)] + end


async def read_own(connection: AsyncConnection) -> tuple[int, datetime]:
    """The key of the session of this connection."""
    pid, began = (await connection.execute(text(_OWN))).one()
    return pid, began


async def read_holder(connection: AsyncConnection, key: int) -> Session | None:
    """The session that has the advisory lock of this number."""
    row = (await connection.execute(text(_HOLDER), {"key": key})).first()
    return Session(*row) if row is not None else None


async def end(connection: AsyncConnection, session: Session) -> bool:
    """End a session, and return whether it is gone now. The server may not let this role end it."""
    there = text("SELECT pid FROM pg_stat_activity WHERE pid = :pid AND backend_start = :began")
    values = {"pid": session.pid, "began": session.backend_start}
    with suppress(DBAPIError):
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid = :pid AND backend_start = :began"
            ),
            values,
        )
        for _ in range(_END_POLLS):
            if await connection.scalar(there, values) is None:
                return True
            await asyncio.sleep(_END_SECONDS)
    return False


@cache
def _machine() -> str | None:
    """A name of this start of this machine, and of the container of this process. None where the system does not tell
    it: then no process counts as dead."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        names = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return sha256(f"{boot}{names}".encode()).hexdigest()[:8]


def _started(pid: int) -> str | None:
    """When a process of this machine began, in ticks of its clock. None if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name of the program stands in parentheses, and may have blanks; the start is the 22nd field
    return status.rpartition(")")[2].split()[19]
