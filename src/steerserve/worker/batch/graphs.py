"""Decode passes on static buffers, which a GPU records once for each number of rows and then replays.

Tokens, positions and the steering of each row are written into buffers before a pass; logits and the values of the
sites are read from buffers after the pass. A replay is used only where it certainly did what a called pass does.
Whenever anything is not as it must be, the pass is called on the same buffers, and no later pass is replayed. Where the
called pass fails too, the pass runs as any other pass, steered by hooks. Where only memory ran out, passes are recorded
again later. An error that also ends the pass by hooks is one of a row, and changes nothing for later passes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import torch
from torch import Tensor

from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import CudaGraphs, Decoding
from steerserve.worker import memory
from steerserve.worker.batch.planned import Pass
from steerserve.worker.hooks.called_sites import PlaceName, Unlike, is_same
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import Catches
from steerserve.worker.model import recording
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.recording import CardRecorder, PassRecorder, RecordedPass
from steerserve.worker.model.results import PassResult
from steerserve.worker.model.transformer import described_error

log = structlog.get_logger(__name__)

Kind = tuple[int, frozenset[PlaceName]]
"""The number of rows of a pass, and the sites at which what the rows do is called."""

CALLED_FIRST = 3
"""Passes of a kind with called sites that are called before one is recorded: a recording takes as long as several
passes, and edits at some positions only make kinds that never come again."""

RECORDED = 64
"""The most passes that are held recorded."""

PAUSE_PASSES = 256
"""Passes after memory ran out until they run as before again. Each further pause is twice as long."""


@dataclass(frozen=True, slots=True)
class RecordedDecode:
    """A recorded pass, and the tensors that hold the values of the sites after each replay."""

    made: RecordedPass
    values: Mapping[int, Tensor]


class DecodeGraphs:
    """Owner of the static buffers and of the recorded passes. Without a recorder, passes on static buffers are
    called.

    `recordings` counts the recorded passes, and `replays` the replays whose results were used. `on_change` is called
    when the way changes in which later passes are run.
    """

    def __init__(
        self,
        model: Checkpoint,
        saes: HookedSaes,
        recorder: PassRecorder | None,
    ) -> None:
        self._model = model
        self._saes = saes
        self._recorder = recorder
        self._passes = saes.passes
        self._passes.calls.recorder = None if recorder is None else recorder.apart()
        self._is_off = False
        self._pause, self._next_pause = 0, PAUSE_PASSES
        self._resume: Callable[[], None] = lambda: None
        self._numbers: tuple[int, ...] = ()
        self._recorded: OrderedDict[Kind, RecordedDecode] = OrderedDict()
        self._called_kinds: Counter[Kind] = Counter()
        most = stepping.GRAPH_ROWS[-1]
        self._inputs = torch.zeros(2, most, 1, dtype=torch.long, device=model.device)
        self.on_change: Callable[[CudaGraphs], None] = lambda _: None
        self.recordings = 0
        self.replays = 0

    def begin_pass(self) -> None:
        """A decode pass begins. At the end of a pause, passes run again as before it."""
        if self._pause:
            self._pause -= 1
            if not self._pause:
                self._resume()

    def takes(self, rows: int) -> bool:
        """Whether a decode pass over so many rows runs on static buffers."""
        return not self._is_off and self._rows(rows) is not None

    def decode(
        self,
        cache: KvCache,
        planned: Pass,
        catches: Catches,
        by_hooks: Callable[[], PassResult],
    ) -> PassResult:
        """Run a decode pass with the steering of its rows. The functions of `catches` take the values of
        the attached SAEs.
        `by_hooks` runs the same pass with hooks at the sites."""
        tokens, starts = [ids[0] for ids in planned.tokens], planned.starts
        while not self._is_off:
            count = self._rows(len(tokens))
            assert count is not None
            plan = self._saes.planner.plan_pass(
                [row.steering for row in planned.rows],
                planned.spans,
                catches,
                count=count,
                is_static=True,
            )
            values: dict[int, Tensor] = {}
            try:
                self._saes.planner.fill_tables(plan)
                with self._passes.steered(plan, values):
                    self._fill(tokens, starts)
                    self._model.begin_decode(cache, planned.slots, starts)
                    kind = count, frozenset(plan.sites)
                    logits, read = self._run(cache, kind, len(tokens), values)
                    self._passes.give_values(read)
                return PassResult(logits)
            except Exception as error:
                # the same pass may run again, because it writes at the same positions
                if not isinstance(error, Unlike) and not memory.is_exhausted(error):
                    result = by_hooks()  # where it fails too, a row is at fault
                    self._fall_back(error)
                    return result
                self._fall_back(error)
                memory.recover(error)
        return by_hooks()

    # ------------------------------------------------------------- inside

    def _rows(self, count: int) -> int | None:
        return stepping.graph_rows(count, self._model.row_step)

    def _fill(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Write the tokens and the positions of the rows into their buffers. The other rows of the pass have token 0 at
        position 0, and nobody reads what the model computes for them."""
        new = torch.zeros(self._inputs.shape, dtype=torch.long)
        new[:, : len(tokens), 0] = torch.tensor([list(tokens), list(positions)])
        self._inputs.copy_(new)

    def _run(
        self, cache: KvCache, kind: Kind, count: int, values: dict[int, Tensor]
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """The logits [count, vocabulary] of the pass, and the values of the sites. `values` gets the values of the
        sites in each pass that is not a replay.

        Raises:
            Unlike.
        """
        rows, called = kind
        if self._recorder is None:
            return self._called(cache, rows)[:count], values
        if self._numbers != self._saes.numbers:
            self._forget()
            self._numbers = self._saes.numbers
        recorded = self._recorded.get(kind)
        if recorded is None:
            self._called_kinds[kind] += 1
            if called and self._called_kinds[kind] <= CALLED_FIRST:
                return self._called(cache, rows)[:count], values
            return self._record(self._recorder, cache, kind, count, values)[:count], values
        self._recorded.move_to_end(kind)
        logits = self._replayed(recorded, cache)
        self.replays += 1
        return logits[:count].clone(), recorded.values

    def _called(self, cache: KvCache, rows: int) -> Tensor:
        """A plain pass on the static buffers."""
        self._passes.begin_pass()
        logits = self._forward(cache, rows)
        self._check_steering()
        return logits

    def _forward(self, cache: KvCache, rows: int) -> Tensor:
        return self._model.decode_pass(cache, self._inputs[0, :rows], self._inputs[1, :rows])

    def _replayed(self, recorded: RecordedDecode, cache: KvCache) -> Tensor:
        self._passes.begin_pass()
        cache.beat = self._model.pulse.beat
        logits = recorded.made.replay(cache)
        self._check_steering()
        return logits

    def _check_steering(self) -> None:
        if not self._passes.has_steered():
            raise Unlike("a pass did not steer the rows that it had to steer")

    def _record(
        self,
        recorder: PassRecorder,
        cache: KvCache,
        kind: Kind,
        count: int,
        values: dict[int, Tensor],
    ) -> Tensor:
        """Record the pass. Then run it as a plain pass, whose logits are returned, and replay it once.

        Raises:
            Unlike: the logits of the replay, or the values of a site, are not the bits of the plain pass.
        """
        model, calls, (rows, _) = self._model, self._passes.calls, kind
        assert model.attention is not None
        with calls.skipped():
            made = recording.record(
                model.attention, calls, cache, recorder, lambda: self._forward(cache, rows)
            )
        recorded = RecordedDecode(made, dict(values))
        with calls.noted():
            logits = self._called(cache, rows)
        with calls.checked():
            replayed = self._replayed(recorded, cache)
        pairs = [(replayed, logits), *((recorded.values[n], values[n]) for n in values)]
        if not all(is_same(one[:count], other[:count]) for one, other in pairs):
            raise Unlike("a replayed pass did not give the bits of a plain pass")
        self._recorded[kind] = recorded
        if len(self._recorded) > RECORDED:
            self._recorded.popitem(last=False)
        self.recordings += 1
        return logits

    def _forget(self) -> None:
        """Give up all recorded passes."""
        self._recorded.clear()
        self._called_kinds.clear()

    def _fall_back(self, error: Exception) -> None:
        """From now on, record no passes. Where none was recorded anyway, run no passes on static buffers. After memory
        ran out, both are for a while only."""
        why = str(error) if isinstance(error, Unlike) else described_error(error)
        log.warning("cuda_graphs_off", was_recorded=self._recorder is not None, why=why)
        end = "any more"
        if memory.is_exhausted(error):
            if not self._pause:
                self._resume = partial(self._go_up, self._recorder, self._passes.calls.recorder)
            self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
            end = f"for {self._pause} passes"
        else:
            self._pause = 0
        if self._recorder is not None:
            self._recorder = self._passes.calls.recorder = None
            self._forget()
            self.on_change(CudaGraphs(Decoding.STATIC, f"passes are not recorded {end}: {why}"))
            return
        self._is_off = True
        self.on_change(
            CudaGraphs(Decoding.CALLED, f"passes do not run on static buffers {end}: {why}")
        )

    def _go_up(self, recorder: PassRecorder | None, apart: PassRecorder | None) -> None:
        """Run passes again as before memory ran out."""
        self._is_off = False
        self._recorder, self._passes.calls.recorder = recorder, apart
        decoding = Decoding.STATIC if recorder is None else Decoding.REPLAYED
        log.info("cuda_graphs_on", decoding=decoding)
        self.on_change(CudaGraphs(decoding, "memory had run out; passes run as before again"))


def decode_graphs(state: CudaGraphs, model: Checkpoint, saes: HookedSaes) -> DecodeGraphs | None:
    """What runs the decode passes of the model on static buffers; None where they are called."""
    if state.decoding is Decoding.CALLED:
        return None
    is_recorded = state.decoding is Decoding.REPLAYED
    return DecodeGraphs(model, saes, CardRecorder(model.device) if is_recorded else None)
