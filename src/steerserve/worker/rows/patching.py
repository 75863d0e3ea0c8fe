"""Patches of one text with values of another, and the metric of each.

A patched run differs from the run without a patch only behind the first patched layer, and from the first patched
position on. So it begins there: with the stream of the run without a patch, and with that run's keys and values of the
positions before. Its last MLP runs at the last position only. Runs that begin alike are read together, one layer in
each part of the work, and the engine steps its batch between two parts. On a processor, the layers compute in float32
like those of attribution by gradients. Where the layers of an architecture cannot be run so, each patched run reads the
whole text in a pass of the whole model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import structlog
import torch
from torch import Tensor, nn

from steerserve.errors import Refusal
from steerserve.messages import Patch, Patched, Refused
from steerserve.nouns.patches.rules import Cell, Metric
from steerserve.rules.saes.sites import EMBED, MLP_RAW, RESID_POST, RESID_PRE
from steerserve.worker import memory
from steerserve.worker.model import plain, truth
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.comparing import OTHER_FORM
from steerserve.worker.model.layers import replaced_forward
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.rows.goals import NOT_FINITE, PartedReading
from steerserve.worker.rows.layer_runs import Block, LayerRuns, Pair, WideLayer, joined
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

STREAM_BYTES = 64 << 20
"""The most bytes of the streams of runs that go through the layers together."""

SHORT_WIDTH, WIDER = 6, 10
"""Runs are read together where the longest of them has at most so many tokens, or at most one part in so many more than
the shortest."""

WIDE_BYTES = 1 << 30
"""The most bytes of weights in float32 that are kept from one layer to the next use of it."""

TOLERANCE = 0.2
"""The largest difference between the logits of layers that are run one by one and those of the model's own pass,
relative to the length of the logits less their mean. In bfloat16 it is about 0.02."""

AGAIN_TOLERANCE = 0.002
"""The same for two runs of one text, of which the second begins in the middle."""

Place = tuple[str, int]
"""A site and a layer."""
Result = TypeVar("Result")
Parts = Generator[None, None, Result]
"""Work in parts."""

log = structlog.get_logger(__name__)


class Patching(PartedReading):
    """Reads the text `base`, which is the prompt of its row, and the source of `goal`, and then `base` again with each
    patch of `goal`."""

    needs_logits = True

    def __init__(
        self,
        model: Checkpoint,
        base: Sequence[int],
        goal: Patch,
        unembedding: Callable[[], Unembedding],
    ) -> None:
        super().__init__([find(model.model, model.layers, RESID_POST, model.layers - 1)])
        self._model = model
        self._base = base
        self._source = goal.source
        self._goal = goal
        self._unembedding = unembedding
        self._sites = {
            place: find(model.model, model.layers, *place)
            for place in dict.fromkeys(
                (cell.site, cell.layer) for cell in (*goal.cells, *goal.noise)
            )
        }

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        return _nothing

    def work_in_parts(self, row: BatchRow) -> Parts[Patched | Refused]:
        """Raises:
        Refusal: INSUFFICIENT_MEMORY.
        """
        goal = self._goal
        runs = yield from self._runs(row.request)
        base, source = runs.base, runs.source
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

    def _runs(self, request: int) -> Parts[Runs]:
        """The way in which texts are read: layer by layer where this gives the model's own logits."""
        assert self.logits is not None
        self._check_memory()
        model, longest = self._model, max(len(self._base), len(self._source))
        texts = self._base, self._source
        why = f"the model lies on {len(model.devices)} devices"
        if longest > model.batched_context:
            why = f"the longest text has {longest} tokens; rows of a batch have at most {model.batched_context}"
        elif len(model.devices) == 1:
            try:
                runs = ByLayer(model, texts, self._sites, self._starts(), self._unembedding())
                again = yield from runs.read()
                if _is_near(runs.base.logits, self.logits, TOLERANCE) and _is_near(
                    again, runs.base.logits, AGAIN_TOLERANCE
                ):
                    return runs
                why = "its layers, run one by one, gave other logits"
            except (*OTHER_FORM, LookupError, Refusal) as error:
                if memory.is_exhausted(error):
                    raise
                why = f"its layers do not run one by one: {error}"
        log.warning("patches_read_whole_texts", request=request, reason=why)
        whole = Whole(model, texts, self._sites)
        yield from whole.read()
        return whole

    def _starts(self) -> set[int]:
        cells = (*self._goal.cells, *self._goal.noise)
        return {cell.start[0] for cell in cells}

    def _measured(
        self, runs: Runs, wanted: Sequence[Writing], measure: Measure
    ) -> Parts[list[float]]:
        """The metric with each patch."""
        found = [0.0] * len(wanted)

        def take_values(places: Sequence[int], logits: Tensor) -> None:
            for at, value in zip(places, measure.read(logits), strict=True):
                found[at] = value

        if wanted:
            yield from runs.patched(wanted, take_values)
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
        """The metric of each run, from logits [runs, vocabulary] in float32; NaN where these are not finite."""
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
    """What was read of a text: the logits [vocabulary] after it in float32, and the values [T, width] of sites.
    `streams` has the stream [T, hidden] that enters some layers, and `pairs` the keys and values of each layer."""

    logits: Tensor = field(default_factory=lambda: torch.zeros(0))
    values: dict[Place, Tensor] = field(default_factory=dict)
    streams: dict[int, Tensor] = field(default_factory=dict)
    pairs: list[Pair | None] = field(default_factory=list)


Take = Callable[[Sequence[int], Tensor], None]
"""Takes the logits [runs, vocabulary] in float32 of the patches with these places."""


class Runs(ABC):
    """Reads two texts, and the first of them with patches. `base` and `source` are what was read of them."""

    def __init__(
        self,
        model: Checkpoint,
        texts: tuple[Sequence[int], Sequence[int]],
        sites: Mapping[Place, Site],
    ) -> None:
        self.model = model
        self.texts = texts
        self.sites = sites
        self.base = self.source = ReadText()

    @abstractmethod
    def patched(self, written: Sequence[Writing], take: Take) -> Parts[None]:
        """Read the first text with each of these patches."""


@dataclass(slots=True)
class _Group:
    """Runs that are read from the position `first` on. `coming` has the patches whose runs begin with a layer, with
    their places. `places` are those of the runs that have begun. `stream` [runs, T, hidden] enters the next layer."""

    first: int
    coming: dict[int, list[tuple[int, Writing]]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    stream: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def size(self) -> int:
        """The number of its runs."""
        return sum(map(len, self.coming.values()))

    def enter(self, stream: Tensor) -> None:
        """Take in the streams [runs, T, hidden] of runs that begin now."""
        self.stream = torch.cat([self.stream, stream]) if self.places else stream


class ByLayer(Runs):
    """Runs layers one by one. `starts` are the layers with which patched runs begin."""

    def __init__(
        self,
        model: Checkpoint,
        texts: tuple[Sequence[int], Sequence[int]],
        sites: Mapping[Place, Site],
        starts: set[int],
        unembedding: Unembedding,
    ) -> None:
        super().__init__(model, texts, sites)
        self._last_mlp: nn.Module | None = None
        self._runs = LayerRuns(model)
        self._runs.prepare()
        self._layers = len(self._runs.layers)
        self._middle = self._layers // 2, len(texts[0]) // 2
        self._starts = starts
        self._unembedding = unembedding
        self._at_once = _tokens_at_once(model)
        self._is_wide = model.device.type == "cpu" and model.dtype != torch.float32
        self._wide: dict[int, WideLayer] = {}
        with suppress(Refusal):  # a layer whose MLP is not known computes all positions
            self._last_mlp = find(model.model, self._layers, MLP_RAW, self._layers - 1).module
        self._blocks: dict[tuple[int, int], Block] = {}

    def read(self) -> Parts[Tensor]:
        """Read both texts. Returns the logits [vocabulary] of the first one in a second run, which begins in the middle
        of layers and positions."""
        entered = [self._embedded(ids) for ids in dict.fromkeys(map(tuple, self.texts))]
        streams = [stream for stream, _ in entered]
        read = [values for _, values in entered]
        self.base, self.source = read[0], read[-1]
        middle, again = self._middle[0], _Group(self._middle[1])
        for layer in range(self._layers):
            if layer == middle:
                again.enter(streams[0][:, again.first :])
            for number, values in enumerate(read):
                if layer in self._starts and number == 0:
                    values.streams[layer] = streams[0][0].clone()
                kept: dict[Place, list[Tensor]] = {}
                hooks = partial(self._reading, kept, layer)
                streams[number], pair = yield from self._through(
                    layer, self.texts[number], 0, streams[number], None, hooks
                )
                values.pairs.append(pair)
                values.values |= {place: torch.cat(parts) for place, parts in kept.items()}
            if layer >= middle:
                yield from self._step(layer, again)
        self.base.streams[self._layers] = streams[0][0].clone()
        for stream, values in zip(streams, read, strict=True):
            values.logits = self._unembedding.precise_logits(stream[:, -1])[0]
        return self._unembedding.precise_logits(again.stream[:, -1])[0]

    def patched(self, written: Sequence[Writing], take: Take) -> Parts[None]:
        size = max(1, MOST_LOGITS // self._unembedding.vocabulary)
        for groups in self._batches(written):
            begin = min(layer for group in groups for layer in group.coming)
            for layer in range(begin, self._layers):
                for group in groups:
                    yield from self._step(layer, group)
            for group in groups:
                self._begin_runs(self._layers, group)
            places = [at for group in groups for at in group.places]
            ends = torch.cat([group.stream[:, -1] for group in groups])
            for first in range(0, len(places), size):
                some = slice(first, first + size)
                take(places[some], self._unembedding.precise_logits(ends[some]))
                yield

    # ------------------------------------------------------------- inside

    def _batches(self, written: Sequence[Writing]) -> list[list[_Group]]:
        """Groups that go through the layers together. Runs of a group have about the same first position: all are read
        from the earliest of them on."""
        tokens, size = len(self.texts[0]), self.model.hidden_size * 4
        groups: list[_Group] = []
        shortest = 0
        order = sorted(range(len(written)), key=lambda at: _order(written[at].cell))
        for at in order:
            layer, first = written[at].cell.start
            width = tokens - first
            if not groups or width > max(SHORT_WIDTH, shortest + shortest // WIDER):
                groups.append(_Group(first))
                shortest = width
            groups[-1].first = first
            groups[-1].coming.setdefault(layer, []).append((at, written[at]))
        batches: list[list[_Group]] = [[]]
        held = 0
        for group in groups:
            needed = group.size * (tokens - group.first) * size
            if batches[-1] and held + needed > STREAM_BYTES:
                batches.append([])
                held = 0
            batches[-1].append(group)
            held += needed
        return batches

    def _embedded(self, ids: Sequence[int]) -> tuple[Tensor, ReadText]:
        """The stream [1, T, hidden] that enters the first layer."""
        kept: dict[Place, list[Tensor]] = {}
        with self._reading(kept, 0, 0, only=EMBED):
            block = self._new_block(ids, 0, len(ids))
        return block.stream, ReadText(values={place: parts[0] for place, parts in kept.items()})

    def _begin_runs(self, layer: int, group: _Group) -> dict[Place, list[tuple[int, Writing]]]:
        """Let the runs of a group begin that begin with a layer. Returns what is written to sites within the layer, by
        the number of the run."""
        coming = group.coming.get(layer, [])
        inner: dict[Place, list[tuple[int, Writing]]] = {}
        if not coming:
            return inner
        own = self.base.streams[layer][group.first :]
        stream = own.expand(len(coming), -1, -1).clone()
        for number, (_, one) in enumerate(coming):
            cell = one.cell
            if cell.site not in (EMBED, RESID_PRE, RESID_POST):
                run = len(group.places) + number
                inner.setdefault((cell.site, cell.layer), []).append((run, one))
                continue
            at = torch.tensor(cell.positions, device=own.device)
            value = one.values.to(own.device)
            if cell.site == EMBED:
                before, entered = self.base.values[EMBED, 0][at], own[at - group.first]
                if not torch.equal(before, entered):  # positions are added to the embedding
                    value = (entered.float() + (value.float() - before.float())).to(own.dtype)
            stream[number, at - group.first] = value
        group.enter(stream)
        group.places += [place for place, _ in coming]
        return inner

    def _step(self, layer: int, group: _Group) -> Parts[None]:
        """Run a group through a layer, some runs at a time."""
        inner = self._begin_runs(layer, group)
        pair, before = self.base.pairs[layer], None
        if pair is not None and group.first:
            before = pair[0][:, :, : group.first], pair[1][:, :, : group.first]
        outs = []
        size = max(1, self._at_once // (len(self.texts[0]) - group.first))
        for run in range(0, len(group.stream), size):
            hooks = partial(self._writing, layer, inner, run)
            part = group.stream[run : run + size]
            out, _ = yield from self._through(
                layer, self.texts[0], group.first, part, before, hooks
            )
            outs.append(out)
        if outs:
            group.stream = torch.cat(outs)

    def _through(
        self,
        layer: int,
        ids: Sequence[int],
        first: int,
        stream: Tensor,
        before: Pair | None,
        hooks: Callable[[int], ExitStack],
    ) -> Parts[tuple[Tensor, Pair | None]]:
        """The stream behind a layer, which `stream` [runs, T, hidden] enters from the position `first` on, and the keys
        and values that the layer makes. `before` are those of the positions before. `hooks` opens hooks for the
        positions from one on."""
        made: list[Pair] = []
        outs: list[Tensor] = []
        size = max(1, self._at_once // len(stream))
        for start in range(first, len(ids), size):
            end = min(start + size, len(ids))
            block = self._block(ids, start, end)
            past = joined([*([before] if before is not None else ()), *made])
            with self._open(layer), hooks(start):
                part = stream[:, start - first : end - first]
                out, new = self._runs.call(layer, block, part, past)
            outs.append(out)
            if new is not None:
                made.append(new)
            yield
        return (outs[0] if len(outs) == 1 else torch.cat(outs, 1)), joined(made)

    def _open(self, layer: int) -> AbstractContextManager[None]:
        """While open, a layer computes in float32 where it should."""
        if not self._is_wide:
            return nullcontext()
        if layer not in self._wide:
            if (
                self._wide
                and (len(self._wide) + 1) * next(iter(self._wide.values())).size > WIDE_BYTES
            ):
                self._wide.clear()
            self._wide[layer] = WideLayer(self._runs.layers[layer])
        return self._wide[layer].opened()

    def _block(self, ids: Sequence[int], start: int, end: int) -> Block:
        if ids is not self.texts[0]:
            return self._new_block(ids, start, end)
        if (start, end) not in self._blocks:
            if len(self._blocks) == BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[start, end] = self._new_block(ids, start, end)
        return self._blocks[start, end]

    def _new_block(self, ids: Sequence[int], start: int, end: int) -> Block:
        with truth.in_float32(self.model.model) if self._is_wide else nullcontext():
            return self._runs.block(ids, start, end)

    def _reading(
        self, kept: dict[Place, list[Tensor]], layer: int, start: int, only: str | None = None
    ) -> ExitStack:
        """While open, the values of the sites of a layer are copied; of the embedding where it is `only`."""
        stack = ExitStack()
        for (name, at), site in self.sites.items():
            if at == layer and (name == EMBED) == (only == EMBED):
                parts = kept.setdefault((name, at), [])
                stack.callback(site.hook(_copy_to(parts)).remove)
        return stack

    def _writing(
        self, layer: int, inner: Mapping[Place, list[tuple[int, Writing]]], run: int, start: int
    ) -> ExitStack:
        """While open, patches are written to sites of a layer, in a pass over the runs from `run` on. Behind the last
        layer only the last position is needed."""
        stack = ExitStack()
        if layer == self._layers - 1 and self._last_mlp is not None and not inner:
            stack.enter_context(_at_the_end(self._last_mlp))
        for place, ones in inner.items():
            some = [(number - run, one) for number, one in ones]
            stack.callback(self.sites[place].hook(_write(some, start)).remove)
        return stack


class Whole(Runs):
    """Reads the whole text in passes of the whole model."""

    def read(self) -> Parts[None]:
        """Read both texts."""
        read = []
        for ids in dict.fromkeys(map(tuple, self.texts)):
            kept: dict[Place, list[Tensor]] = {place: [] for place in self.sites}
            hooks = [(place, _copy_to(parts)) for place, parts in kept.items()]
            logits = self._pass(ids, 1, hooks)
            read.append(ReadText(logits[0], {place: parts[0] for place, parts in kept.items()}))
            yield
        self.base, self.source = read[0], read[-1]

    def patched(self, written: Sequence[Writing], take: Take) -> Parts[None]:
        size = max(1, _tokens_at_once(self.model) // len(self.texts[0]))
        for first in range(0, len(written), size):
            by_place: dict[Place, list[tuple[int, Writing]]] = {}
            some = written[first : first + size]
            for run, one in enumerate(some):
                by_place.setdefault((one.cell.site, one.cell.layer), []).append((run, one))
            hooks = [(place, _write(ones, 0)) for place, ones in by_place.items()]
            logits = self._pass(self.texts[0], len(some), hooks)
            take(range(first, first + len(some)), logits)
            yield

    def _pass(self, ids: Sequence[int], runs: int, hooks: Sequence[tuple[Place, AtSite]]) -> Tensor:
        """The logits [runs, vocabulary] in float32 after the last token, with these hooks at sites."""
        model = self.model
        tokens = torch.tensor([list(ids)], device=model.device).expand(runs, -1)
        last = torch.full((runs,), len(ids) - 1)
        with ExitStack() as stack:
            for place, edit in hooks:
                stack.callback(self.sites[place].hook(edit).remove)
            inputs: dict[str, Any] = plain.whole(model.model, tokens)
            out, _ = model.call(pick=(torch.arange(runs), last), **inputs)
        return cast(Tensor, out.logits[:, -1].float().to(model.device))


def _at_the_end(mlp: nn.Module) -> AbstractContextManager[None]:
    """While open, an MLP computes the last position only, and gives 0 at the others. An MLP that gets more than its
    input, or an input that is not [runs, T, hidden], computes all positions."""
    before = vars(mlp).get("forward")

    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        own = before or partial(type(mlp).forward, mlp)
        if args or kwargs or hidden.dim() < 3:
            return own(hidden, *args, **kwargs)
        out = own(hidden[:, -1:])
        last, *others = out if isinstance(out, tuple) else (out,)
        every = torch.cat([torch.zeros_like(hidden[:, 1:]), last], 1)
        return (every, *others) if isinstance(out, tuple) else every

    return replaced_forward(mlp, forward)


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
                if 0 <= run < len(value) and start <= position < start + value.shape[1]:
                    places[run, position - start, one.columns] = True
                    values[run, position - start, one.columns] = one.values[at].float()
        return Moved((), values.new_zeros(1, 1, 1), Replaced(places, values))

    return write


def _order(cell: Cell) -> tuple[int, int]:
    layer, position = cell.start
    return -position, layer


def _nothing() -> None:
    pass


def _divergence(true: Tensor, logprobs: Tensor) -> Tensor:
    """The KL divergence [n] in nats of log-probabilities [n, vocabulary] from the true ones [vocabulary]."""
    terms = true.exp() * (true - logprobs)
    return torch.where(true > -torch.inf, terms, 0.0).sum(-1)


def _is_near(found: Tensor, own: Tensor, tolerance: float) -> bool:
    own = own.float().to(found.device)
    return bool((found - own).norm() <= tolerance * (own - own.mean()).norm())


def _tokens_at_once(model: Checkpoint) -> int:
    """The tokens of all runs that one layer reads in one part of the work."""
    if model.device.type != "cpu":
        return MOST_TOKENS_ON_CARD
    weights = (model.parameters - model.vocabulary * model.hidden_size) // model.layers
    return max(16, min(MOST_TOKENS, PART_PRODUCTS // max(1, weights)))
