"""Forward passes with the steering of their rows, and with what is read for the parts of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from steerserve.rules.inference import stepping
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.batch.part_reads import PartReads, reading_states
from steerserve.worker.batch.planned import Pass
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import Catches
from steerserve.worker.model import kv
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.plain import PlainPasses
from steerserve.worker.model.results import PassEnded, PassResult, Status


class SteeredPasses:
    """The passes of one model over a cache. With `graphs`, decode passes run on static buffers where those have room
    for the rows. A pass that may stop is stopped once `must_stop` says so."""

    def __init__(
        self,
        model: Checkpoint | PlainPasses,
        cache: Any,
        saes: HookedSaes,
        graphs: DecodeGraphs | None = None,
        must_stop: Callable[[], bool] = kv.never,
    ) -> None:
        self._model = model
        self._cache = cache
        self._saes = saes
        self._reads = PartReads()
        self._graphs = graphs
        self._must_stop = must_stop

    def run(self, planned: Pass) -> PassResult:
        """Run a pass with the steering of its rows, and copy what their parts read. A pass that was stopped has changed
        nothing.

        Raises:
            Exception: an error in the pass. It is one of its rows, and of no others; the pass has changed nothing.
        """
        applied = self._saes.applied
        try:
            may_end = planned.is_for_parts and not self._model.is_alone
            result = self._run(planned, self._reads.expect(planned, may_end=may_end))
            if result.status is not Status.STOPPED:
                self._reads.settle()
                return result
        except Exception:
            self._undo(applied)
            raise
        self._undo(applied)
        return result

    def _undo(self, applied: Mapping[str, int]) -> None:
        self._reads.discard()
        self._saes.uncount(applied)

    def _run(self, planned: Pass, catches: Catches) -> PassResult:
        # a replay calls no hook
        graphs = self._graphs if planned.may_replay and not catches.sites else None
        if graphs is not None:
            graphs.begin_pass()
            if graphs.takes(len(planned.rows)):
                called = partial(self._called, replace(planned, may_stop=False), catches)
                return graphs.decode(self._cache, planned, catches, called)
        return self._called(planned, catches)

    def _called(self, planned: Pass, catches: Catches) -> PassResult:
        """A pass in which the model's own code is called, and the sites are hooked."""
        if not planned.is_prefill:
            return self._steered(planned, catches)
        with reading_states(planned, is_alone=self._model.is_alone) as values:
            return replace(self._steered(planned, catches), values=values)

    def _steered(self, planned: Pass, catches: Catches) -> PassResult:
        spans = planned.spans
        plan = self._saes.planner.plan_pass(
            [row.steering for row in planned.rows],
            spans,
            catches,
            count=0 if planned.is_prefill else stepping.up(len(spans), self._model.row_step),
            tokens=spans[0][1] if self._model.is_alone else 0,
        )
        try:
            with self._saes.passes.steered(plan):
                return self._forward(planned)
        except PassEnded as ended:
            return PassResult(torch.empty(len(spans), 0), status=ended.status)

    def _forward(self, planned: Pass) -> PassResult:
        must_stop = self._must_stop if planned.may_stop else kv.never
        cache, slots = self._cache, planned.slots
        if planned.is_prefill:
            return self._model.prefill(
                cache,
                slots,
                planned.tokens,
                start=planned.starts,
                with_sums=planned.with_sums,
                wanted=planned.wanted,
                must_stop=must_stop,
            )
        tokens = [ids[0] for ids in planned.tokens]
        return self._model.decode_step(cache, slots, tokens, planned.starts, must_stop)
