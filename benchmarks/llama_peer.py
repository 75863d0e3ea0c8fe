"""llama.cpp's server for one GGUF file: `python llama_peer.py FILE ROWS CONTEXT THREADS`.

The script runs in an environment of its own, and imports nothing of ours. It prints the address, and ends when its
standard input closes.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    path, rows, context, threads = sys.argv[1], *map(int, sys.argv[2:5])
    library = importlib.import_module("xllamacpp")
    params = library.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.ui, params.verbosity = False, 1
    params.fit_params, params.cache_ram_mib, params.n_gpu_layers = False, 0, 999
    # each row has a cache of its own, which was faster than one pool for all rows
    params.n_ctx, params.n_parallel, params.kv_unified = rows * context, rows, False
    params.n_batch, params.n_ubatch = 2048, 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.chat_template = "chatml"
    server = library.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
