"""Accepts connections while they have places. The others wait in the queue of the system, so that a burst is answered
connection by connection, and takes none of the open files that are left to the service itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from steerserve.http.connections import Connections

QUEUE = 2048
"""Connections that the system holds until they are accepted, as far as the system allows."""
PAUSE_SECONDS = 0.02
"""The pause until a full service looks for a place again."""


class Acceptor:
    """Accepts the connections of one listening socket. `protocol` makes the protocol of a connection."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._connections = connections
        self._protocol = protocol
        self._entering: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(QUEUE)
        self._go_on()

    def stop(self) -> None:
        """Accept no more connections."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()

    # ------------------------------------------------------------- inside

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept the connections that wait, as far as there are places."""
        while self._connections.has_place(len(self._entering), self._loop.time()):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # the process may open no more files
                self._connections.warn(self._loop.time())
                break
            entering = self._loop.create_task(self._enter(accepted))
            self._entering.add(entering)
            entering.add_done_callback(self._entering.discard)
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._go_on)

    async def _enter(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:  # the client has left
            accepted.close()


class Server(uvicorn.Server):
    """A web server whose sockets are read by acceptors. `connections` has its open connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.connections = connections
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # the server gets no socket, and so accepts nothing itself
        await super().startup([])
        if self.should_exit:
            return
        self._acceptors = [
            Acceptor(listening, self.connections, self._made) for listening in sockets or ()
        ]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        await super().shutdown(sockets)

    def _made(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
