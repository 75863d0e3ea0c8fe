"""Forward passes with the steering of their rows and the observers in place."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from steerserve.worker.batch.graphs import DecodeGraphs, DecodeInputs
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import Stopped
from steerserve.worker.model.plain import PlainPasses
from steerserve.worker.observers.observers import Observers
from steerserve.worker.rows.rows import BatchRow


class SteeredPasses:
    """The passes of one model. With `graphs`, decode passes run on static buffers where those have room for the
    rows."""

    def __init__(
        self,
        model: Checkpoint | PlainPasses,
        saes: HookedSaes,
        observers: Observers,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._saes = saes
        self._observers = observers
        self._graphs = graphs

    def run(
        self,
        rows: list[BatchRow],
        spans: list[tuple[int, int]],
        forward: Callable[[], Tensor],
        count: int = 0,
        inputs: DecodeInputs | None = None,
    ) -> Tensor | Exception:
        """Run a forward pass with the rows' steering and the observers in place. Returns the logits, or the error that
        ended the pass; `Stopped` where it was only stopped.

        `spans` has, for each row, the position of its first token in this pass, and the number of its tokens. The pass
        has `count` rows where that is more than `rows`. `inputs` are those of a decode pass.
        """
        steered, applied = [row.steering for row in rows], self._saes.applied
        try:
            catches = self._observers.expect(rows, spans)
            tokens = spans[0][1] if self._model.is_alone else 0
            graphs = self._graphs if inputs else None
            if graphs is not None:
                graphs.begin_pass()
            if inputs and graphs is not None and graphs.takes(len(rows)):
                logits = graphs.decode(*inputs, rows=steered, spans=spans, catches=catches)
            else:
                with self._saes.of(steered, spans, catches, count=count, tokens=tokens):
                    logits = forward()
            self._observers.settle()
            return logits
        except Stopped as stopped:
            self._observers.discard()
            self._saes.uncount(applied)
            return stopped
        except Exception as error:
            self._observers.discard()
            self._saes.uncount(applied)
            # any error of a forward pass is one of its rows, and of no others
            return error
