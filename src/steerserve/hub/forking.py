"""The fork server of the downloaders, `python -m steerserve.hub.forking`. It has imported the libraries, so that a
downloader starts in a fraction of the time that the imports take.

Its standard input is a socket. Each message on the socket brings two file descriptors: the link of a new downloader,
over which the task and the events go, and its leash. When the service closes its end of the leash, the downloader is
killed. The other end is closed as soon as the downloader has ended. The fork server itself reads no task, so it never
has a hub token. When its input closes, it ends all downloaders and itself.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket

import httpcore2  # noqa: F401 -- the HTTP client imports this with its first request

from steerserve.hub import fetch


def main() -> None:
    """Fork downloaders until the input closes. Each downloader leaves this function too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as control:
        # no downloader may hold this socket, which tells the service whether the fork server lives
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # objects that no collection of garbage looks at stay in memory that all downloaders share
        gc.collect()
        gc.freeze()
        link = _Server(control).serve()
    fetch.main(link)


class _Server:
    """Owns the leashes of the downloaders that it has forked, each with the id of the process."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._leashes: dict[int, int] = {}
        self._poll = select.poll()

    def serve(self) -> socket.socket:
        """Returns in each forked process, with its link."""
        self._poll.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._end(descriptor)
                elif (link := self._fork()) is not None:
                    return link

    def _fork(self) -> socket.socket | None:
        """Fork a downloader. Returns the link in the new process, and None in this process. If there is no memory for
        a process, the service sees both descriptors closed."""
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not descriptors:
            self._end_all()
        link, leash = descriptors
        try:
            pid = os.fork()
        except OSError:
            os.close(link)
            os.close(leash)
            return None
        if pid == 0:
            for other in (leash, *self._leashes):
                os.close(other)
            return socket.socket(fileno=link)
        os.close(link)
        self._leashes[leash] = pid
        self._poll.register(leash, select.POLLIN)
        return None

    def _end(self, leash: int) -> None:
        # the process is a child that was not waited for, so no other process can have its id
        pid = self._leashes.pop(leash)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._poll.unregister(leash)
        os.close(leash)

    def _end_all(self) -> None:
        for leash in list(self._leashes):
            self._end(leash)
        os._exit(0)


if __name__ == "__main__":
    main()
