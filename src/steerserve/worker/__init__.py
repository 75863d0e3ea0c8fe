"""The engine process: the only place that imports the tensor library.

Ownership: the process owns one model with its KV cache (`model/`), the SAEs attached to it (`sae/`, `hooks/`), the
rows that run (`rows/`, `batch/`), what reads the rows of all requests (`live/`), and its end of the
socket (`process/`). A process holds one model for its whole life. It knows no database, no setting and no HTTP:
everything that it needs comes in a command.

Threads: all tensor work and all state are on the main thread, which takes turns: carry out the commands that have
arrived, take one step of the batch, send the outcomes. There are no locks, with one exception: schemas are compiled in
a second thread (`rows/constrain.py`), and the cache of compiled schemas has a lock. That thread changes nothing else;
it wakes the loop when a schema is compiled.

Heartbeat: the main loop writes what it is doing, and a count, into shared memory (`heartbeat.py`), before each command,
at each layer of a pass, and every second without work. The control plane reads this number and never asks for it, so a
loop that is stuck, and a process that is stopped, are noticed. `rules/residency/heartbeat.py` says how long each
activity may be silent.

Errors: a forward pass belongs to many rows. An error over one row ends the request of this row. An error in a forward
pass ends the requests of its rows. An error in monitoring is logged and ends no request.

To add a command: a message in `messages/commands.py` (and in `Command` there), its answer in
`messages/events.py`, a method of `process/commands.py` with its line in `METHODS`, and a method of
`messages/engine.py`, whose default is the answer of an engine without layers and which `engines/checkpoint/client.py`
overrides.

To add what reads the rows of all requests: a subclass of `LiveReader` (`live/readers.py`), put into the list in
`process/loading.py`, with a `RowPart` (`parts/row_part.py`) that it gives each row. The batch and the loop know no
single reader:

- `join`: the rows of a request are about to join. The reader gives them their parts.
- `reads_in_pass` and `span` of a part: the attached SAEs, and the positions of the pass, that it reads. A pass copies
  these values and computes nothing of them, because every row waits for it. An SAE that no part reads costs nothing.
- `take_pass` of the part's reader: the pass has succeeded. The copies of all rows with the same reader come together,
  so that many tokens are encoded at once; for a few features, `Sae.narrowed` and `Sae.encode_columns` read only the
  columns of these features of the encoder. Where the copying or this fails, `fail` says what ends the rows: nothing,
  for monitoring and sensing.
- `end` of a part: the row is complete. `forget`: a request was cancelled or refused.
- `mark`, `notes` and `resume` of a part: what a row takes over with a kept beginning of its prompt.
- `detached`: an SAE was taken away.
- `events` and `work`, after each step: `events` returns events that are sent before the ends of the rows; `work` does
  work that no client waits for.
"""
