"""The engine process: the only place that imports the tensor library.

What it owns. One model with its KV cache (`model/`), the SAEs attached to it (`sae/`, `attached/`), the rows that run
(`rows/`, `batch/`), what is read of the SAEs meanwhile (`observing/`), and its end of the socket (`process/`). A process
holds one model for its whole life. It knows no database, no setting and no HTTP: everything that it needs comes in a command.

One thread. All tensor work and all state are on the main thread, which takes turns: carry out the commands that came, one
step of the batch, send what came of it. There are no locks, with one exception: schemas are compiled in a thread beside
(`rows/constrain.py`), whose cache of compiled schemas has a lock of its own. That thread only wakes the loop.

A pass belongs to many rows. What fails for one row ends its own request. What fails in a forward pass ends the requests of
its rows. What fails in monitoring is logged and ends nothing.

To add a command: a message in `engine/wire/commands.py` (and in `Command` there), its answer in `engine/wire/events.py`, a
method of `process/commands.py` with its line in `METHODS`, and a method of `engine/wire/engine.py`, which says what an engine
without layers does, with the real one in `engine/checkpoint/client.py`.

To add an observer: a subclass of `Observer` (`observing/observers.py`), made and put into the list in `process/loading.py`.
The batch and the loop ask the list at these points and know no member of it:

- `begin`: the rows of a request are about to join. The observer may refuse the request.
- `expect`: a pass is about to run over these spans of these rows. The observer names the attached SAEs whose values it wants
  in this pass, each with a function that takes the value. Return nothing where nothing is wanted: an SAE without such
  functions costs nothing.
- the function: called by the hook, within the pass, with the value of the whole batch. It copies its rows and computes
  nothing, because every row waits for it.
- `settle` or `discard`: the pass succeeded or failed. `settle` may encode what was copied, many tokens at once; for a few
  features, `Sae.narrowed` and `Sae.encode_columns` read only their columns of the encoder.
- `end`: a row is complete. What is returned is sent before its end. `forget`: a request was cancelled or refused.
- `detached`: an SAE was taken away.
- `events` and `work`: after each step, what is sent before the ends of the rows, and work that nobody waits for.
"""
