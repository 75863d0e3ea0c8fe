"""An ordinary `llama-server` program as the engine of a GGUF model: its options, its port, its end."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from steerserve.engines.gguf.messages import LlamaCard, LlamaCards, Serve, ServeAnswer

ASK_SECONDS = 30.0
"""Seconds in which the program must list its options or its cards."""

HEALTH_SECONDS = 5.0
_PARENT_DEATH_SIGNAL = 1
_CARD = re.compile(r"^\s*(\w+): .*\(\d+ MiB, (\d+) MiB free\)", re.MULTILINE)
_PORT = re.compile(r"listening.*?(?:127\.0\.0\.1:|port[:=] ?)([1-9]\d*)")
_WHERE_KNOWN = (
    ("--no-webui",),
    ("--fit", "off"),
    ("--cache-ram", "0"),
    ("--kv-unified",),
    ("--slots",),
)
"""Options that only some versions of the program know. A version that knows such an option needs it."""


class Program:
    """Runs the program at a path. The program ends with this process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._child: subprocess.Popen[str] | None = None
        self._is_killed = False

    def cards(self) -> LlamaCards:
        cards = _CARD.findall(self._ask("--list-devices"))
        return LlamaCards([LlamaCard(name, int(free) << 20) for name, free in cards])

    def serve(self, wanted: Serve) -> ServeAnswer:
        with _key_file(wanted.api_key) as key_file:
            self._child = subprocess.Popen(  # noqa: S603 -- the operator names the program
                [self._path, *self._options(wanted), "--api-key-file", str(key_file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=partial(_die_with, os.getpid()),
            )
            port = self._port()
            if port is None or not self._is_healthy(port):
                return ServeAnswer(error="the program did not start to serve")
        return ServeAnswer(url=f"http://127.0.0.1:{port}")

    def wait(self) -> None:
        """Return when the program has ended. If a signal ended the program, the same signal ends this process."""
        assert self._child is not None
        code = self._child.wait()
        if code < 0 and not self._is_killed:
            os.kill(os.getpid(), -code)

    def kill(self) -> None:
        self._is_killed = True
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _ask(self, option: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 -- the operator names the program
                [self._path, option],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ASK_SECONDS,
                check=False,
                preexec_fn=partial(_die_with, os.getpid()),
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"the program does not answer {option}") from None
        return done.stdout.decode("utf-8", "replace")

    def _options(self, wanted: Serve) -> list[str]:
        named: dict[str, object] = {
            "--model": wanted.path,
            "--host": "127.0.0.1",
            "--port": 0,
            "--ctx-size": wanted.pool,
            "--parallel": wanted.slots,
            "--batch-size": wanted.batch,
            "--ubatch-size": wanted.batch,
            "--threads": wanted.threads,
            "--n-gpu-layers": 999,
            "--cache-type-k": wanted.cache_type,
            "--cache-type-v": wanted.cache_type,
            "--chat-template": "chatml",
        }
        if wanted.cache_type != "f16":
            named["--flash-attn"] = "on"
        if wanted.tensor_split:
            named["--tensor-split"] = ",".join(map(str, wanted.tensor_split))
        options = [str(part) for pair in named.items() for part in pair] + ["--no-warmup"]
        if wanted.embeddings:
            options += ["--embeddings", "--pooling", "mean"]
        known = self._ask("--help")
        return options + [part for option in _WHERE_KNOWN if option[0] in known for part in option]

    def _port(self) -> int | None:
        """The port on which the program listens, read from its output; None when the program ended. The output is
        passed on."""
        assert self._child is not None
        assert self._child.stdout is not None
        for text in self._child.stdout:
            sys.stderr.write(text)
            sys.stderr.flush()
            if port := _PORT.search(text):
                threading.Thread(target=self._pass_on, daemon=True).start()
                return int(port[1])
        return None

    def _pass_on(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        for text in self._child.stdout:
            sys.stderr.write(text)
            sys.stderr.flush()

    def _is_healthy(self, port: int) -> bool:
        """Wait until the model is loaded. There is no limit here, because the process that started this one limits the
        time. Returns False when the program ended instead."""
        assert self._child is not None
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_SECONDS)
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                contextlib.closing(connection),
            ):
                connection.request("GET", "/health")
                if connection.getresponse().status == http.client.OK:
                    return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=0.1)
                return False


@contextlib.contextmanager
def _key_file(key: str) -> Iterator[Path]:
    """A file with the key that only this user can read. It exists while the program starts."""
    number, name = tempfile.mkstemp()
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(key + "\n")
        yield Path(name)
    finally:
        Path(name).unlink()


def _die_with(parent: int) -> None:
    """Let the kernel kill the program when its parent dies. On systems other than Linux, the program is killed when the
    input of its parent closes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the kernel knew of the signal
        os._exit(1)
