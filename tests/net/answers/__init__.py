"""The whole answers of `/v1` as the build gives them today: bodies, events of streams, headers and refusals.

`options.py` and `refused.py` are the tables of requests, and `table.py` puts them together. `worlds.py` starts the
services that are asked. `normal.py` takes out of an answer what differs between two runs, and `pinned.py` compares it
with the files in `pinned/`. After an intended change of answers, `python -m tests.net.answers.record` writes them anew.
"""

import os

# one thread, as all tests have it: sums of floats have one order
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_THREADS", "1")
