"""Patches of one text with values of another, and the metric of each.

A patched run differs from the run without a patch only behind the first patched layer, and from the first patched
position on. So it begins there: with the stream of the run without a patch, and with that run's keys and values of the
positions before. Runs that begin alike are read together, one layer in each part of the work, and the engine steps its
batch between two parts. Where the layers of an architecture cannot be run so, each patched run reads the whole text in
a pass of the whole model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Patch, Patched, Refused
from steerserve.rules.inference.patches import Cell, Metric
from steerserve.rules.saes.sites import EMBED, RESID_POST, RESID_PRE
from steerserve.worker import memory
from steerserve.worker.model import plain
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.comparing import OTHER_FORM
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.rows.goals import NOT_FINITE, StateReading
from steerserve.worker.rows.layer_runs import Block, LayerRuns, Pair, joined
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.sites import AtSite, Change, Moved, Replaced, Site, find

MOST_TOKENS = 256
MOST_TOKENS_ON_CARD = 4096
"""The most tokens of all runs that are read at once."""

PART_PRODUCTS = 1 << 30
"""The products of two numbers that one layer computes in one part of the work on a processor, where a layer is small
enough."""

MOST_LOGITS = 1 << 22
"""The most logits that are computed at once."""

BLOCKS_KEPT = 64
"""The blocks of positions whose masks and angles are kept for further runs."""

TOLERANCE = 0.02
"""The largest difference between the logits of layers that are run one by one and those of the model's own pass,
relative to the length of the logits less their mean."""

Place = tuple[str, int]
"""A site and a layer."""
Result = TypeVar("Result")
Parts = Generator[None, None, Result]
"""Work in parts."""


class Patching(StateReading):
    """Reads the text `base`, which is the prompt of its row, and the text `source`, and then `base` again with each of
    the patches of `goal`."""

    needs_logits = True

    def __init__(
        self,
        model: Checkpoint,
        base: Sequence[int],
        source: Sequence[int],
        goal: Patch,
        unembedding: Callable[[], Unembedding],
    ) -> None:
        super().__init__([find(model.model, model.layers, RESID_POST, model.layers - 1)])
        self._model = model
        self._base = base
        self._source = source
        self._goal = goal
        self._unembedding = unembedding
        self._sites = {
            place: find(model.model, model.layers, *place)
            for place in dict.fromkeys(
                (cell.site, cell.layer) for cell in (*goal.cells, *goal.noise)
            )
        }
        self._work: Parts[Patched | Refused] | None = None

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        return _nothing

    def work(self, row: BatchRow) -> Patched | Refused | None:
        """Raises:
        Refusal: INSUFFICIENT_MEMORY.
        """
        if self._work is None:
            self._work = self._run(row)
        try:
            next(self._work)
        except StopIteration as ended:
            return cast("Patched | Refused", ended.value)
        return None

    def _run(self, row: BatchRow) -> Parts[Patched | Refused]:
        goal = self._goal
        runs = yield from self._runs()
        base = runs.base
        source = base
        if self._source != self._base:
            source = yield from runs.read(self._source)
        clean = base if goal.is_noise else source
        measure = Measure(goal.metric, clean.logits)
        own, other = (measure.read(one.logits[None])[0] for one in (base, source))
        written = [self._writing(cell, source.values, goal.pairs) for cell in goal.cells]
        is_same = [
            torch.equal(one.values, self._writing(cell, base.values, {}).values)
            for cell, one in zip(goal.cells, written, strict=True)
        ]
        wanted = [one for one, same in zip(written, is_same, strict=True) if not same]
        wanted += [self._writing(cell, base.values, {}) for cell in goal.noise]
        found = yield from self._measured(runs, wanted, measure)
        values = iter(found)
        cells = [own if same else next(values) for same in is_same]
        noise = list(values)
        if not all(torch.tensor([own, other, *cells, *noise]).isfinite()):
            return row.refused(*NOT_FINITE)
        ends = (own, other) if goal.is_noise else (other, own)
        return Patched(row.request, row.choice, *ends, cells, noise, row.seconds)

    def _runs(self) -> Parts[Runs]:
        """The way in which texts are read: layer by layer where this gives the model's own logits."""
        assert self.logits is not None
        self._check_memory()
        found: Runs
        try:
            found = ByLayer(self._model, self._base, self._sites, self._starts(), self._unembedding())
            found.base = yield from found.read(self._base)
            again = yield from found.again()
            if all(_is_near(one, self.logits) for one in (found.base.logits, again)):
                return found
        except (*OTHER_FORM, LookupError, Refusal) as error:
            if memory.is_exhausted(error):
                raise
        found = Whole(self._model, self._base, self._sites)
        found.base = yield from found.read(self._base)
        return found

    def _starts(self) -> set[int]:
        cells = (*self._goal.cells, *self._goal.noise)
        return {cell.start[0] for cell in cells}

    def _measured(
        self, runs: Runs, wanted: Sequence[Writing], measure: Measure
    ) -> Parts[list[float]]:
        """The metric with each patch."""
        found = [0.0] * len(wanted)
        for places in runs.grouped([one.cell for one in wanted]):
            logits = runs.patched([wanted[at] for at in places])
            values: list[float] = []
            for some in (yield from logits):
                values += measure.read(some())
                yield
            for at, value in zip(places, values, strict=True):
                found[at] = value
        return found

    def _writing(
        self, cell: Cell, values: Mapping[Place, Tensor], pairs: Mapping[int, int]
    ) -> Writing:
        """What a cell writes, with the values of a text, whose positions are those of the patched text or those that
        `pairs` says."""
        site = self._sites[cell.site, cell.layer]
        read = torch.tensor([pairs.get(at, at) for at in cell.positions])
        columns = slice(None)
        if cell.head is not None:
            dim = site.width // site.heads
            columns = slice(cell.head * dim, (cell.head + 1) * dim)
        every = values[cell.site, cell.layer]
        return Writing(cell, every[read.to(every.device)][:, columns], columns)

    def _check_memory(self) -> None:
        """Check that there is memory for what is kept of both texts.

        Raises:
            Refusal: INSUFFICIENT_MEMORY.
        """
        model, tokens = self._model, len(self._base) + len(self._source)
        widths = sum(site.width for site in self._sites.values())
        widths += len(self._starts()) * model.hidden_size
        size = tokens * (widths * model.dtype.itemsize + 3 * model.kv_bytes_per_token)
        available = memory.free(model.device)
        if size > available:
            why = (
                f"the values of {tokens} tokens at {len(self._sites)} places take {size >> 20} MiB; "
                f"{available >> 20} MiB are free on {model.device}"
            )
            details = memory.described(model.device)
            raise Refusal("INSUFFICIENT_MEMORY", why, **details, prompt_tokens=tokens)


class Measure:
    """Computes a metric of logits. `clean` are the logits [vocabulary] of the clean text."""

    def __init__(self, metric: Metric, clean: Tensor) -> None:
        self._metric = metric
        self._clean = clean.log_softmax(-1) if metric.kind == "kl" else clean

    def read(self, logits: Tensor) -> list[float]:
        """The metric of each run, of logits [runs, vocabulary] in float32. It is not finite where the logits are not."""
        metric = self._metric
        if metric.kind == "logit_difference":
            found = logits[:, metric.target] - logits[:, metric.against]
        elif metric.kind == "logprob":
            found = logits.log_softmax(-1)[:, metric.target]
        else:
            found = _divergence(self._clean, logits.log_softmax(-1))
        found = torch.where((logits < torch.inf).all(-1), found, torch.nan)  # NaN compares false
        return cast("list[float]", found.tolist())


@dataclass(frozen=True, slots=True)
class Writing:
    """A cell and the values [positions, numbers] that it writes to these columns of its site."""

    cell: Cell
    values: Tensor
    columns: slice


@dataclass(slots=True)
class ReadText:
    """What was read of a text: the logits [vocabulary] after it in float32, and the values [T, width] of sites. `streams`
    has the stream [T, hidden] that enters some layers, and `pairs` the keys and values of each layer."""

    logits: Tensor = field(default_factory=lambda: torch.zeros(0))
    values: dict[Place, Tensor] = field(default_factory=dict)
    streams: dict[int, Tensor] = field(default_factory=dict)
    pairs: list[Pair | None] = field(default_factory=list)


class Runs(ABC):
    """Reads texts, and `base` with patches."""

    base: ReadText

    def __init__(
        self, model: Checkpoint, ids: Sequence[int], sites: Mapping[Place, Site]
    ) -> None:
        self._model = model
        self._ids = ids
        self._sites = sites
        self._at_once = _tokens_at_once(model)

    @abstractmethod
    def read(self, ids: Sequence[int]) -> Parts[ReadText]:
        """Read a text."""

    @abstractmethod
    def grouped(self, cells: Sequence[Cell]) -> list[list[int]]:
        """The places of cells that are read together."""

    @abstractmethod
    def patched(self, written: Sequence[Writing]) -> Parts[list[Callable[[], Tensor]]]:
        """What gives, some runs at a time, the logits [runs, vocabulary] in float32 of the patched runs."""


class ByLayer(Runs):
    """Runs layers one by one. `starts` are the layers with which patched runs begin."""

    def __init__(
        self,
        model: Checkpoint,
        ids: Sequence[int],
        sites: Mapping[Place, Site],
        starts: set[int],
        unembedding: Unembedding,
    ) -> None:
        super().__init__(model, ids, sites)
        self._runs = LayerRuns(model)
        self._runs.prepare()
        self._starts = starts | {model.layers // 2}
        self._unembedding = unembedding
        self._blocks: dict[tuple[int, int], Block] = {}

    def read(self, ids: Sequence[int]) -> Parts[ReadText]:
        is_base = ids == self._ids
        kept: dict[Place, list[Tensor]] = {place: [] for place in self._sites}
        streams: dict[int, list[Tensor]] = {layer: [] for layer in self._starts if is_base}
        pairs: list[list[Pair]] = [[] for _ in self._runs.layers]
        hidden = torch.zeros(0)
        for start in range(0, len(ids), self._at_once):
            end = min(start + self._at_once, len(ids))
            with self._reading(kept, 0, EMBED):
                block = self._runs.block(ids, start, end)
            hidden = block.stream
            for layer in range(len(self._runs.layers)):
                if layer in streams:
                    streams[layer].append(hidden[0].clone())
                with self._reading(kept, layer):
                    hidden, new = self._runs.call(layer, block, hidden, joined(pairs[layer]))
                if new is not None:
                    pairs[layer].append(new)
                yield
            if len(self._runs.layers) in streams:
                streams[len(self._runs.layers)].append(hidden[0].clone())
        return ReadText(
            self._unembedding.logits(hidden[0, -1:])[0],
            {place: torch.cat(parts) for place, parts in kept.items()},
            {layer: torch.cat(parts) for layer, parts in streams.items()},
            [joined(some) for some in pairs],
        )

    def again(self) -> Parts[Tensor]:
        """The logits [vocabulary] of the text once more, in a run that begins in the middle of layers and positions."""
        layer, start = self._model.layers // 2, len(self._ids) // 2
        hidden = yield from self._from(layer, start, [])
        return self._unembedding.logits(hidden)[0]

    def grouped(self, cells: Sequence[Cell]) -> list[list[int]]:
        """Runs that begin with the same layer, those with the last positions first. They are read from the first of
        their positions on."""
        order = sorted(range(len(cells)), key=lambda at: _order(cells[at]))
        groups: list[list[int]] = []
        for _, places in groupby(order, key=lambda at: cells[at].start[0]):
            some: list[int] = []
            for at in places:
                tokens = len(self._ids) - cells[at].start[1]
                if some and (len(some) + 1) * tokens > self._at_once:
                    groups.append(some)
                    some = []
                some.append(at)
            groups.append(some)
        return groups

    def patched(self, written: Sequence[Writing]) -> Parts[list[Callable[[], Tensor]]]:
        starts = [one.cell.start for one in written]
        hidden = yield from self._from(starts[0][0], min(at for _, at in starts), written)
        size = max(1, MOST_LOGITS // self._unembedding.vocabulary)
        return [_later(self._unembedding.logits, some) for some in hidden.split(size)]

    # ------------------------------------------------------------- inside

    def _from(self, layer: int, first: int, written: Sequence[Writing]) -> Parts[Tensor]:
        """The stream [runs, hidden] behind the last layer after the last token, of runs that begin with a layer and a
        position. Without anything to write there is one run."""
        base, count = self.base, max(1, len(written))
        made: list[list[Pair]] = [
            [] if pair is None or not first else [(pair[0][:, :, :first], pair[1][:, :, :first])]
            for pair in base.pairs
        ]
        stream, inner = self._entering(layer, first, written)
        size = max(1, self._at_once // count)
        hidden = stream
        for start in range(first, len(self._ids), size):
            end = min(start + size, len(self._ids))
            hidden = stream[:, start - first : end - first]
            for at in range(layer, len(self._runs.layers)):
                block = self._block(start, end)
                with ExitStack() as hooks:
                    for place, some in inner.items() if at == layer else ():
                        site = self._sites[place]
                        hooks.callback(site.hook(_write(some, start)).remove)
                    hidden, new = self._runs.call(at, block, hidden, joined(made[at]))
                if new is not None:
                    made[at].append(new)
                yield
        return hidden[:, -1]

    def _entering(
        self, layer: int, first: int, written: Sequence[Writing]
    ) -> tuple[Tensor, dict[Place, list[tuple[int, Writing]]]]:
        """The stream [runs, T, hidden] that enters a layer, with what is written to it, and what is written to sites
        within the layer, by the number of the run."""
        stream = self.base.streams[layer][first:].expand(max(1, len(written)), -1, -1).clone()
        inner: dict[Place, list[tuple[int, Writing]]] = {}
        for run, one in enumerate(written):
            cell = one.cell
            if cell.site not in (EMBED, RESID_PRE, RESID_POST):
                inner.setdefault((cell.site, cell.layer), []).append((run, one))
                continue
            at = torch.tensor(cell.positions, device=stream.device)
            value = one.values.to(stream.device)
            if cell.site == EMBED:
                own = self.base.values[EMBED, 0].to(stream.device)[at]
                entered = stream[run, at - first]
                if not torch.equal(own, entered):  # positions are added to the embedding
                    value = (entered.float() + (value.float() - own.float())).to(stream.dtype)
            stream[run, at - first] = value
        return stream, inner

    def _block(self, start: int, end: int) -> Block:
        if (start, end) not in self._blocks:
            if len(self._blocks) == BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[start, end] = self._runs.block(self._ids, start, end)
        return self._blocks[start, end]

    def _reading(
        self, kept: Mapping[Place, list[Tensor]], layer: int, only: str | None = None
    ) -> ExitStack:
        """While open, the values of the sites of a layer are copied; of the embedding where it is `only`."""
        stack = ExitStack()
        for (name, at), site in self._sites.items():
            if at == layer and (name == EMBED) == (only == EMBED):
                stack.callback(site.hook(_copy_to(kept[name, at])).remove)
        return stack


class Whole(Runs):
    """Reads the whole text in passes of the whole model."""

    def read(self, ids: Sequence[int]) -> Parts[ReadText]:
        kept: dict[Place, list[Tensor]] = {place: [] for place in self._sites}
        hooks = [(place, _copy_to(parts)) for place, parts in kept.items()]
        logits = self._pass(ids, 1, hooks)
        yield
        return ReadText(logits[0], {place: parts[0] for place, parts in kept.items()})

    def grouped(self, cells: Sequence[Cell]) -> list[list[int]]:
        size = max(1, self._at_once // len(self._ids))
        return [
            list(range(len(cells)))[first : first + size] for first in range(0, len(cells), size)
        ]

    def patched(self, written: Sequence[Writing]) -> Parts[list[Callable[[], Tensor]]]:
        by_place: dict[Place, list[tuple[int, Writing]]] = {}
        for run, one in enumerate(written):
            by_place.setdefault((one.cell.site, one.cell.layer), []).append((run, one))
        hooks = [(place, _write(some, 0)) for place, some in by_place.items()]
        logits = self._pass(self._ids, len(written), hooks)
        yield
        return [lambda: logits]

    def _pass(
        self, ids: Sequence[int], runs: int, hooks: Sequence[tuple[Place, AtSite]]
    ) -> Tensor:
        """The logits [runs, vocabulary] in float32 after the last token, with these hooks at sites."""
        model = self._model
        tokens = torch.tensor([list(ids)], device=model.device).expand(runs, -1)
        last = torch.full((runs,), len(ids) - 1)
        with ExitStack() as stack:
            for place, edit in hooks:
                stack.callback(self._sites[place].hook(edit).remove)
            inputs = plain.whole(model.model, tokens)
            out, _ = model.call(pick=(torch.arange(runs), last), **inputs)
        return cast(Tensor, out.logits[:, -1].float().to(model.device))


def _copy_to(parts: list[Tensor]) -> AtSite:
    """Copies the value of a site in a pass over one text."""

    def copy(value: Tensor) -> Change:
        parts.append(value[0].clone())
        return None

    return copy


def _write(some: Sequence[tuple[int, Writing]], start: int) -> AtSite:
    """Puts the values of patches in the place of those of their runs, in a pass over the positions from `start` on."""

    def write(value: Tensor) -> Change:
        places = torch.zeros_like(value, dtype=torch.bool)
        values = torch.zeros_like(value, dtype=torch.float32)
        for run, one in some:
            for at, position in enumerate(one.cell.positions):
                if start <= position < start + value.shape[1]:
                    places[run, position - start, one.columns] = True
                    values[run, position - start, one.columns] = one.values[at].float()
        return Moved((), values.new_zeros(1, 1, 1), Replaced(places, values))

    return write


def _order(cell: Cell) -> tuple[int, int]:
    layer, position = cell.start
    return layer, -position


def _later(function: Callable[[Tensor], Tensor], given: Tensor) -> Callable[[], Tensor]:
    return lambda: function(given)


def _nothing() -> None:
    pass


def _divergence(true: Tensor, logprobs: Tensor) -> Tensor:
    """The KL divergence [n] in nats of log-probabilities [n, vocabulary] from the true ones [vocabulary]."""
    terms = true.exp() * (true - logprobs)
    return torch.where(true > -torch.inf, terms, 0.0).sum(-1)


def _is_near(found: Tensor, own: Tensor) -> bool:
    own = own.float().to(found.device)
    return bool((found - own).norm() <= TOLERANCE * (own - own.mean()).norm())


def _tokens_at_once(model: Any) -> int:
    """The tokens of all runs that one layer reads in one part of the work."""
    if model.device.type != "cpu":
        return MOST_TOKENS_ON_CARD
    weights = (model.parameters - model.vocabulary * model.hidden_size) // model.layers
    return max(16, min(MOST_TOKENS, PART_PRODUCTS // max(1, weights)))
