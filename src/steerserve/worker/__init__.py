"""The engine process: the only place that imports the tensor library.

Ownership: the process owns one model with its KV cache (`model/`), the SAEs attached to it (`sae/`, `hooks/`), the
rows that run (`rows/`, `batch/`), the observers that read activations of the SAEs (`observers/`), and its end of the
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

To add an observer: a subclass of `Observer` (`observers/observers.py`), made and put into the list in
`process/loading.py`. The batch and the loop call the list at these points, and know no single observer:

- `begin`: the rows of a request are about to join. The observer may refuse the request.
- `expect`: a pass is about to run over these spans of these rows. The observer names the attached SAEs whose values it
  wants in this pass, each with a function that takes the value. It returns nothing where it wants no value: an SAE
  without such functions costs nothing.
- the function that `expect` returned: the hook calls it within the pass, with the value of the whole batch. The
  function copies its rows and computes nothing, because every row waits for it.
- `settle` or `discard`: the pass succeeded or failed. `settle` may encode the copied values, many tokens at once; for
  a few features, `Sae.narrowed` and `Sae.encode_columns` read only the columns of these features of the encoder.
- `end`: a row is complete. The outcomes that the observer returns are sent before the row's end.
- `forget`: a request was cancelled or refused.
- `detached`: an SAE was taken away.
- `events` and `work`, after each step: `events` returns events that are sent before the ends of the rows; `work` does
  work that no client waits for.
"""
