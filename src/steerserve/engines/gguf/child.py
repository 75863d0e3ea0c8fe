"""The process of one GGUF model: llama.cpp's server on a loopback port, from the library or from a `llama-server`
program.

The process ends when its standard input closes. The key of the port is in neither its arguments nor its environment.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
import threading
from typing import Any, BinaryIO, Protocol

import msgspec

from steerserve.engines.gguf.messages import Hello, LlamaCard, LlamaCards, Serve, ServeAnswer, line
from steerserve.engines.gguf.program import Program

_CARD_TYPES = frozenset({"GPU", "IGPU"})
_ALL_LAYERS = 999
_WARNINGS = 2
OOM_SCORE = "500"
"""Half of the largest score by which the kernel chooses the process to end when memory runs out."""


class Backend(Protocol):
    """The part that runs the model."""

    def cards(self) -> LlamaCards: ...
    def serve(self, wanted: Serve) -> ServeAnswer: ...
    def wait(self) -> None:
        """Return when the server has ended by itself."""

    def kill(self) -> None: ...


class Library:
    """llama.cpp's server inside this process. When it crashes, the process ends with it."""

    def __init__(self) -> None:
        # imported only here, because a process that runs a `llama-server` program does not need the library
        self._xllamacpp = importlib.import_module("xllamacpp")
        self._server: Any = None

    def cards(self) -> LlamaCards:
        return LlamaCards(
            [
                LlamaCard(str(device["name"]), int(device["memory_free"]))
                for device in self._xllamacpp.get_device_info()
                if device["type"].name.rpartition("_")[2] in _CARD_TYPES
            ]
        )

    def serve(self, wanted: Serve) -> ServeAnswer:
        try:
            self._server = self._xllamacpp.Server(self._parameters(wanted))
        except RuntimeError as error:
            return ServeAnswer(error=str(error))
        return ServeAnswer(url=self._server.listening_address)

    def wait(self) -> None:
        threading.Event().wait()

    def kill(self) -> None:
        """The server ends with this process, so there is nothing to do."""

    def _parameters(self, wanted: Serve) -> Any:
        library = self._xllamacpp
        params = library.CommonParams()
        params.model.path = wanted.path
        params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [wanted.api_key]
        params.ui, params.warmup, params.verbosity = False, False, _WARNINGS
        params.cors_origins = ""
        # the context must not be shrunk to fit, and no second cache in host memory is kept
        params.fit_params, params.cache_ram_mib = False, 0
        params.n_ctx, params.n_parallel, params.kv_unified = wanted.pool, wanted.slots, True
        params.n_batch = params.n_ubatch = wanted.batch
        params.n_gpu_layers = _ALL_LAYERS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = wanted.threads
        # the control plane renders the model's own template; a template that cannot be read would fail the load
        params.chat_template = "chatml"
        if wanted.cache_type == "q8_0":
            params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_Q8_0
            params.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if wanted.embeddings:
            params.embedding = True
            params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        if wanted.tensor_split:
            unused = [0.0] * (len(params.tensor_split) - len(wanted.tensor_split))
            params.tensor_split = [*wanted.tensor_split, *unused]
        return params


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        # where the memory of the machine runs out, the kernel ends this process and not the service
        file.write(OOM_SCORE)
    answers, commands = _answers(), sys.stdin.buffer
    hello = msgspec.json.decode(commands.readline(), type=Hello)
    try:
        backend: Backend = Program(hello.server_bin) if hello.server_bin else Library()
        _say(answers, backend.cards())
    except (ImportError, OSError) as error:
        _say(answers, LlamaCards(error=str(error)))
        return
    if not (wanted := commands.readline()):
        return
    threading.Thread(target=_end_with_input, args=(backend,), daemon=True).start()
    serving = backend.serve(msgspec.json.decode(wanted, type=Serve))
    _say(answers, serving)
    if serving.url:
        backend.wait()
    backend.kill()
    # not `os._exit`, because the engine writes the rest of its messages about a failure when the process exits
    sys.exit(1)


def _answers() -> BinaryIO:
    """A private copy of the standard output. All other output of this process goes to the standard error."""
    ours = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return ours


def _say(answers: BinaryIO, message: LlamaCards | ServeAnswer) -> None:
    answers.write(line(message))
    answers.flush()


def _end_with_input(backend: Backend) -> None:
    """End the process when its input closes. While the library loads a model, this waits for the end of the load."""
    # read without the buffer of `sys.stdin`, whose lock would hold up an exit
    while os.read(0, 1 << 10):
        pass
    backend.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
