"""The raw activations of one row: passes copy the values of sites, and the row keeps those at its positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional

from steerserve.errors import Refusal
from steerserve.parts.activations_raw.form import (
    DTYPES,
    FIELD,
    RawChunk,
    RawReads,
    RawSite,
    RawSums,
    RawValues,
)
from steerserve.parts.row_part import Copied, Read, Reader, RowFacts, RowPart
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.saes.sites import LOGITS, PATTERN
from steerserve.rules.steering.positions import missing, most_generated
from steerserve.worker import memory
from steerserve.worker.sae.sites import Site

KEPT_PASSES = 64
"""Copies that several rows share are cut into those of each row after so many passes."""

SUMMED_NUMBERS = 1 << 20
"""The numbers that are summed at once."""
_SCORE_BYTES = 12
"""The bytes that attention takes for a query, a key and a head in the plain way: scores, and a softmax in float32."""

_RUNNING: WeakSet[RawRow] = WeakSet()
"""What reads the rows that wait or run now. A row that is gone is not among them."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Copied values, one tensor for each site: their places `places` have the values at `positions` of the row. `end`
    is the number of positions that the row had after the pass."""

    positions: list[int]
    places: list[int]
    values: Sequence[Tensor]
    end: int = 0


class RawRow(RowPart):
    """The values of sites at the positions of one row. They are kept in the type that is sent, on the host."""

    def __init__(self, form: RawReads, facts: RowFacts) -> None:
        """Raises:
        Refusal: INVALID_PARAMETER for a site that the model does not have, for a head that the site does not have, for
            a prompt position that the prompt does not have, and where the values could take too many bytes;
            INSUFFICIENT_MEMORY where they do not fit beside those of other requests.
        """
        self._form, self._facts = form, facts
        for one in form.sites:
            _check_site(one, facts)
        size = len(facts.prompt)
        if form.piece_bytes is None:
            _check_positions(form, size)
        sites = facts.sites([_place(one) for one in form.sites], True).sites
        self._columns = [_columns(one, site) for one, site in zip(form.sites, sites, strict=True)]
        # the keys of a pattern are at most all positions of the row
        self._room = size + facts.max_tokens
        self._shapes = [
            _shape(one, site, self._room) for one, site in zip(form.sites, sites, strict=True)
        ]
        self._paths = [site.path for site in sites]
        names = [one.site for one in form.sites]
        self._hooked = [number for number, name in enumerate(names) if name != LOGITS]
        self._unhooked = [number for number, name in enumerate(names) if name == LOGITS]
        if self._hooked:
            at = [_place(form.sites[number]) for number in self._hooked]
            self.reads = (facts.sites(at, form.is_before),)
        if PATTERN in names:
            self.attends_plainly = True
            _check_plain_room(form.sites[names.index(PATTERN)], sites[names.index(PATTERN)], size)
        wanted = facts.are_at(form.positions, 0, size)
        if self._unhooked and any(wanted):
            self.logits_from = list(wanted).index(True)
        # a kept beginning of a prompt never has its last position
        self.may_reuse = not any(wanted[:-1])
        self._reads_answer = most_generated(form.positions, facts.max_tokens) > 0
        self.request = facts.request
        self.reserved = self._reserve(sum(wanted)) if form.piece_bytes is None else 0
        self._dtype: torch.dtype = getattr(torch, form.dtype)
        self._end = 0
        self._waiting: list[_Waiting] = []
        self._logits: list[_Waiting] = []
        self._positions: list[int] = []
        self._kept: list[list[Tensor]] = [[] for _ in form.sites]
        _RUNNING.add(self)

    @property
    def reader(self) -> Reader:
        return READER

    def _reserve(self, of_prompt: int) -> int:
        """The bytes that the values of the row may take.

        Raises:
            Refusal: as `__init__`.
        """
        form = self._form
        positions = of_prompt + most_generated(form.positions, self._facts.max_tokens)
        numbers = sum(torch.Size(shape).numel() for shape in self._shapes)
        size = positions * numbers * DTYPES[form.dtype]
        before = sum(one.reserved for one in _RUNNING if one.request == self.request)
        what = (
            f"up to {positions} positions x {numbers} numbers x {DTYPES[form.dtype]} bytes"
            f" = {size} bytes"
        )
        if before:
            what += f", and {before} bytes of the choices before it"
        if before + size > form.max_bytes:
            raise refuse_parameter(
                FIELD,
                f"{what}; at most {form.max_bytes} for a request (ACTIVATIONS_RAW_MAX_MB)",
                positions=positions,
                numbers=numbers,
                bytes=before + size,
                max_bytes=form.max_bytes,
            )
        running = sum(one.reserved for one in _RUNNING)
        if running + size > form.all_max_bytes:
            raise Refusal(
                "INSUFFICIENT_MEMORY",
                f"{FIELD}: {what}, and {running} bytes of all that runs; at most {form.all_max_bytes}"
                " (ACTIVATIONS_RAW_ALL_MB)",
                param=FIELD,
                bytes=size,
                running_bytes=running,
                max_bytes=form.all_max_bytes,
            )
        return size

    # ------------------------------------------------------------- in passes

    def reads_in_pass(self) -> Sequence[Read]:
        """Nothing once no coming position is read."""
        is_over = bool(self._facts.out) and not self._reads_answer
        return () if is_over else self.reads

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        self._end = end
        if self._form.positions.is_every:
            return start, end
        wanted = self._facts.are_at(self._form.positions, start, end - start)
        places = [place for place, is_in in enumerate(wanted) if is_in]
        return (start + places[0], start + places[-1] + 1) if places else (end, end)

    def wait(self, first: int, start: int, end: int, values: Sequence[Tensor]) -> None:
        """The places [start, end) of copied values are the positions from `first` on."""
        positions, places = self._among(first, end - start)
        places = [start + place for place in places]
        self._waiting.append(_Waiting(positions, places, values, self._end))

    def read_logits(self, first: int, logits: Tensor) -> None:
        positions, places = self._among(first, len(logits))
        if positions:
            kept = _picked(logits, places).clone()
            self._logits.append(_Waiting(positions, list(range(len(kept))), [kept]))

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        written = len(self._facts.out)
        if self._unhooked and written:  # the first token follows the prompt, whose logits were read
            self.read_logits(len(self._facts.prompt) + written - 1, logits[None])
        if max(len(self._waiting), len(self._logits)) >= KEPT_PASSES:
            self._keep()

    def _among(self, first: int, count: int) -> tuple[list[int], list[int]]:
        """Which of the positions [first, first + count) are read, and their places among these."""
        wanted = self._facts.are_at(self._form.positions, first, count)
        places = [place for place, is_in in enumerate(wanted) if is_in]
        return [first + place for place in places], places

    def _keep(self) -> None:
        """Keep the own values of the copies, in the type that is sent.

        Raises:
            Refusal: NON_FINITE.
        """
        for numbers, waiting in ((self._hooked, self._waiting), (self._unhooked, self._logits)):
            for place, number in enumerate(numbers if waiting else ()):
                self._keep_site(number, waiting, 0 if number in self._unhooked else place)
        of_sites = self._waiting if self._hooked else self._logits
        self._positions += [at for one in of_sites for at in one.positions]
        self._waiting, self._logits = [], []

    def _keep_site(self, number: int, waiting: Sequence[_Waiting], place: int) -> None:
        """Keep the values of the site with this number, which are at a place among those that wait."""
        parts = [_picked(one.values[place], one.places) for one in waiting]
        columns = self._columns[number]
        if self._form.sites[number].site == PATTERN:
            parts = [
                _of_row(part, one.end, self._room) for part, one in zip(parts, waiting, strict=True)
            ]
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        if columns is not None:
            rows = rows[:, columns.to(rows.device)]
        sent = rows.to(self._dtype)
        if not bool(sent.isfinite().all()):
            positions = [at for one in waiting for at in one.positions]
            raise self._not_finite(number, positions, rows, sent)
        self._kept[number].append(sent.cpu())

    def _not_finite(
        self, number: int, positions: Sequence[int], rows: Tensor, sent: Tensor
    ) -> Refusal:
        at = (~sent.isfinite()).nonzero()[0].tolist()
        one, value, position = self._form.sites[number], rows[tuple(at)], positions[at[0]]
        of_layer = "" if one.layer is None else f" of layer {one.layer}"
        place = f"{one.site}{of_layer} at position {position}"
        why = f"{one.where}: {place} has the value {float(value)}"
        if value.isfinite():
            why += f", which {self._form.dtype} cannot hold; bfloat16 can"
        return Refusal(
            "NON_FINITE",
            why,
            param=one.where,
            site=one.site,
            layer=one.layer,
            position=position,
        )

    # ------------------------------------------------------------- at the end

    def chunk(self, *, is_last: bool) -> RawChunk | None:
        if not is_last:
            return None
        if self._waiting or self._logits:
            self._keep()
        kind = torch.float32 if self._form.is_listed else self._dtype
        # the last token of an answer is never read
        read = len(self._facts.prompt) + max(0, len(self._facts.out) - 1)
        values = []
        for number, kept in enumerate(self._kept):
            data, shape = b"", self._shapes[number]
            is_pattern = self._form.sites[number].site == PATTERN
            shape = (*shape[:-1], read) if is_pattern else shape
            if kept:
                rows = torch.cat(kept).to(kind)[..., : shape[-1] if is_pattern else None]
                data = _sent(rows)
            values.append(RawValues(self._paths[number], shape, data))
            kept.clear()
        self.reserved = 0
        return RawChunk(tuple(self._positions), tuple(values))

    def pieces(self) -> Iterator[object]:
        if self._form.piece_bytes is None:
            yield from super().pieces()
            return
        if self._waiting or self._logits:
            self._keep()
        every = [torch.cat(kept) if kept else None for kept in self._kept]
        sizes = [values[0].nbytes for values in every if values is not None and len(values)]
        count = max(1, self._form.piece_bytes // max(1, sum(sizes)))
        starts = range(0, len(self._positions), count)
        for start in starts or (0,):
            values = tuple(
                RawValues(path, shape, b"" if kept is None else _sent(kept[start : start + count]))
                for path, shape, kept in zip(self._paths, self._shapes, every, strict=True)
            )
            is_last = start + count >= len(self._positions)
            sums = tuple(map(_sums, every)) if is_last else ()
            yield RawChunk(tuple(self._positions[start : start + count]), values, sums)

    def refusal(self, error: Exception) -> Exception:
        self.reserved = 0  # the error holds the row until Python collects both
        if not memory.is_exhausted(error):
            return error
        device = memory.exhausted(error, torch.device("cpu"))
        why = f"{device} ran out of memory over the activations asked for"
        return Refusal("INSUFFICIENT_MEMORY", why, **memory.described(device))


class RawReader:
    """Takes the values of all rows together."""

    def take_pass(self, copies: Sequence[Copied]) -> None:
        for copied in copies:
            start = 0
            for part, first, size in zip(copied.parts, copied.firsts, copied.sizes, strict=True):
                assert isinstance(part, RawRow)
                part.wait(first, start, start + size, copied.values)
                start += size

    def fail(self, parts: Sequence[RowPart], error: Exception) -> Exception | None:
        refusal, *_ = [part.refusal(error) for part in parts]
        memory.recover(error)
        return refusal


READER = RawReader()


def _picked(values: Tensor, places: Sequence[int]) -> Tensor:
    """The rows [n, width] at these rising places."""
    if not places or places[-1] - places[0] + 1 == len(places):
        return values[places[0] : places[-1] + 1] if places else values[:0]
    return values[torch.tensor(places, device=values.device)]


def _sent(values: Tensor) -> bytes:
    """Values in host memory as little-endian numbers."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def _sums(values: Tensor | None) -> RawSums:
    """The sums of values [n, numbers], a part of them at a time."""
    if values is None:
        return RawSums(b"", 0.0)
    total, lengths = torch.zeros(values.shape[1], dtype=torch.float64), 0.0
    for part in values.split(max(1, SUMMED_NUMBERS // values.shape[1])):
        exact = part.double()
        total += exact.sum(0)
        lengths += float(exact.norm(dim=1).sum())
    return RawSums(total.numpy().tobytes(), lengths)


def _of_row(pattern: Tensor, end: int, room: int) -> Tensor:
    """The probabilities [n, heads, room] of all positions of a row that has `end` of them, from those [n, heads, keys]
    of the last ones."""
    before = end - pattern.shape[-1]
    return functional.pad(pattern, (before, room - end))


def _place(one: RawSite) -> tuple[str, int]:
    """The site and the layer where it is looked for."""
    return one.site, one.layer or 0


def _check_plain_room(one: RawSite, site: Site, tokens: int) -> None:
    """Raises:
    Refusal: INSUFFICIENT_MEMORY where the scores of a prompt of so many tokens do not fit.
    """
    size, free = site.heads * tokens**2 * _SCORE_BYTES, memory.free(site.device)
    if size > free:
        why = (
            f"{one.where}: the attention of a prompt of {tokens} tokens takes {size} bytes on {site.device}; "
            f"{free} are free"
        )
        details = memory.described(site.device)
        raise Refusal("INSUFFICIENT_MEMORY", why, param=one.where, bytes=size, **details)


def _check_site(one: RawSite, facts: RowFacts) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a site that the model does not have there, naming its place in the request.
    """
    try:
        facts.sites([_place(one)], True)
    except Refusal as refusal:
        raise refuse_parameter(f"{one.where}.site", refusal.message, **refusal.details) from None


def _check_positions(form: RawReads, size: int) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a position that a prompt of `size` tokens does not have.
    """
    at = missing(form.positions, size)
    if at is not None:
        where = f"{FIELD}.positions.prompt_positions"
        why = f"the prompt has no position {at}; it has {size} tokens"
        raise refuse_parameter(where, why, prompt_tokens=size)


def _columns(one: RawSite, site: Site) -> Tensor | None:
    """The columns of the heads that are read, or the heads of a pattern; None for all.

    Raises:
        Refusal: INVALID_PARAMETER for a site without heads, and for a head that it does not have.
    """
    if one.heads is None:
        return None
    where = f"{one.where}.heads"
    for head in one.heads:
        if not site.heads:
            raise refuse_parameter(where, f"{site.name} of this model is not divided into heads")
        if head >= site.heads:
            why = f"{head} is outside [0, {site.heads})"
            raise refuse_parameter(where, why, heads=site.heads)
    if site.name == PATTERN:
        return torch.tensor(one.heads)
    size = site.width // site.heads
    return torch.cat([torch.arange(head * size, (head + 1) * size) for head in one.heads])


def _shape(one: RawSite, site: Site, room: int) -> tuple[int, ...]:
    """The shape of the values at one position: [heads, head width] where the site has heads, or [heads, keys], of which
    there are at most `room`."""
    if not site.heads:
        return (site.width,)
    heads = site.heads if one.heads is None else len(one.heads)
    return heads, room if site.name == PATTERN else site.width // site.heads
