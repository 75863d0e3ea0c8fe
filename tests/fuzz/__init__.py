"""A fuzzer for a running service: `make fuzz`, or `python -m tests.fuzz`.

One run starts the demo service as a process of its own and sends it generated requests from several threads. The work
is cut into chunks. A chunk has a kind and a number, and both together with the seed fix every random choice of the
chunk, so that a chunk can be repeated alone:

- `described`: cases that schemathesis makes from the service's own /openapi.json, and cases that break that description
- `bodies`: working requests for every route, with hostile values, fields, bytes, headers, queries and paths
- `raw`: bytes that are almost HTTP
- `events`: Socket.IO over polling and over WebSocket
- `sequences`: calls in random order, after each of which the state is read and compared with what was acknowledged
- `races`: threads that change the same state at one moment

Every answer is checked (`checks.py`). A process beside the run asks for liveness and reads the memory of each process
of the service (`watcher.py`). At the end the state of the beginning is restored, and one fixed set of requests must be
answered as it was answered at the beginning, byte for byte.
"""
