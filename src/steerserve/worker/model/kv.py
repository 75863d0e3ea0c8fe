"""The KV cache of the running batch: keys and values per layer. Each row has room for its own length only.

It knows nothing of requests or sampling. A model sees it as its `past_key_values`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from steerserve.worker.model.results import PassEnded, Status

if TYPE_CHECKING:
    from steerserve.worker.model.attention import PartedAttention

Held = dict[int, tuple[Tensor, Tensor]]
"""One row's keys and values [kv_heads, tokens, head_dim] by layer."""


@dataclass(slots=True, eq=False)
class CacheSlot:
    """The room of one row: `capacity` tokens, at `place` among the rows of the same capacity."""

    capacity: int
    place: int


@dataclass(slots=True, eq=False)
class Shelf:
    """The rows of one capacity, without gaps: keys and values [room, kv_heads, capacity, head_dim] by layer.

    The tensors are made in the first pass, because the shape of the heads is known only then. A row finds zeros in its
    room: what a row before it left, NaN perhaps, would reach its attention even under a mask.
    """

    capacity: int
    room: int = 0
    slots: list[CacheSlot] = field(default_factory=list)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    used: int = 0

    def resize(self, room: int) -> None:
        """Have room for `room` rows. Where memory runs out meanwhile, some layers have more room than others; the shelf
        then has the room that it had before."""
        count = len(self.slots)
        for held in (self.keys, self.values):
            for layer, old in held.items():
                new = old.new_zeros(room, *old.shape[1:])
                new[:count] = old[:count]
                held[layer] = new
        self.room, self.used = room, count

    def make(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Make the tensors of a layer, where there are none, with the heads of `keys` and `values` [..., kv_heads, T,
        head_dim]."""
        if layer not in self.keys:
            for held, like in ((self.keys, keys), (self.values, values)):
                held[layer] = like.new_zeros(
                    self.room, like.shape[-3], self.capacity, like.shape[-1]
                )

    def open(self) -> CacheSlot:
        """The next free room, with zeros in it."""
        place = len(self.slots)
        if place < self.used:
            for tensor in (*self.keys.values(), *self.values.values()):
                tensor[place].zero_()
        slot = CacheSlot(self.capacity, place)
        self.slots.append(slot)
        self.used = max(self.used, place + 1)
        return slot

    def move(self, slot: CacheSlot, place: int) -> None:
        """Let a row and the row at `place` change their places."""
        other = self.slots[place]
        if other is slot:
            return
        here, there = [slot.place, place], [place, slot.place]
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[here] = tensor[there]
        self.slots[slot.place], self.slots[place] = other, slot
        slot.place, other.place = place, slot.place

    def close(self, slot: CacheSlot) -> None:
        """Take a row out. The last row moves to its place."""
        last = self.slots.pop()
        if last is not slot:
            for tensor in (*self.keys.values(), *self.values.values()):
                tensor[slot.place] = tensor[last.place]
            last.place = slot.place
            self.slots[slot.place] = last


@dataclass(slots=True)
class ShelfPart:
    """The rows of a decode pass that lie on one shelf: rows `first` to `last` of the pass, at `places` [n] of the
    shelf, of which `count` are read. Each row's new token is at one of `positions` [n]. `is_whole` says that the rows
    are the first of the shelf, in order. `written` has, by the number of heads, where `targets` are."""

    shelf: Shelf
    first: int
    last: int
    places: Tensor
    positions: Tensor
    count: int
    is_whole: bool
    written: dict[int, Tensor] = field(default_factory=dict)

    def own_rows(self, rows: Tensor) -> Tensor:
        """The rows of this part among all rows of the pass."""
        is_all = rows.shape[0] == self.last - self.first
        return rows if is_all else rows[self.first : self.last]

    def targets(self, heads: int) -> Tensor:
        """Where the new keys and values [n * heads, head_dim] belong in a tensor of the shelf that is seen as [room *
        heads * capacity, head_dim]."""
        found = self.written.get(heads)
        if found is None:
            head = torch.arange(heads, device=self.places.device)
            first = (self.places[:, None] * heads + head) * self.shelf.capacity
            found = self.written[heads] = (first + self.positions[:, None]).flatten()
        return found


@dataclass(slots=True)
class _Prefill:
    """A prefill pass: for each row its room, the number of its tokens, and the position of the first of them. `read` is
    the number of tokens of cache that attention reads; 0 where it reads the tokens of the pass only."""

    slots: Sequence[CacheSlot]
    sizes: Sequence[int]
    starts: Sequence[int]
    read: int


def never() -> bool:
    """The `must_stop` of a pass that runs to its end."""
    return False


class KvCache:
    """Shelves of rows, and what the coming pass reads and writes.

    `limit` is the number of tokens beyond which no room is made ahead of its use. `beat` is called by each layer of a
    pass, which ends there once `must_stop` says so; each pass sets both. While a pass is recorded (`is_recorded`),
    keys and values are only noted as `new`, and the call of attention writes them. With `reads_parts` the attention of
    a decode pass reads each shelf by itself, from `parts`; otherwise it gets a copy of all rows, padded to the longest.
    `ready` is what the compiled layers have made for the decode pass that runs, by the windows of the layers.
    """

    is_compileable = False
    attention: PartedAttention | None = None

    def __init__(self, limit: int = 0, *, reads_parts: bool = False) -> None:
        self.beat: Callable[[], None] = _nothing
        self.must_stop: Callable[[], bool] = never
        self.limit = limit
        self.reads_parts = reads_parts
        self.parts: list[ShelfPart] = []
        self.layer = 0
        self.is_recorded = False
        self.new: tuple[Tensor, ...] = ()
        self.ready: dict[int, object] = {}
        self._shelves: dict[int, Shelf] = {}
        self._prefill: _Prefill | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens for which room is held."""
        return sum(shelf.room * shelf.capacity for shelf in self._shelves.values())

    def tensors(self) -> Iterator[Tensor]:
        """The keys and values that are allocated."""
        for shelf in self._shelves.values():
            yield from (*shelf.keys.values(), *shelf.values.values())

    @property
    def bytes_by_device(self) -> dict[torch.device, int]:
        """By device, the number of bytes that one token of one row takes over all layers."""
        sizes: dict[torch.device, int] = {}
        for shelf in list(self._shelves.values())[:1]:
            for tensor in (*shelf.keys.values(), *shelf.values.values()):
                size = tensor.shape[1] * tensor.shape[3] * tensor.element_size()
                sizes[tensor.device] = sizes.get(tensor.device, 0) + size
        return sizes

    # ------------------------------------------------------------- rooms

    def open(self, capacity: int) -> CacheSlot:
        """Room for a row of `capacity` tokens."""
        shelf = self._shelves.get(capacity) or Shelf(capacity)
        if len(shelf.slots) == shelf.room:
            room = (self.limit - self.tokens) // capacity
            if room < 1:
                self._trim()
                room = (self.limit - self.tokens) // capacity
            ahead = min(max(1, shelf.room), room, self.limit // 4 // capacity)
            shelf.resize(shelf.room + max(1, ahead))
        self._shelves[capacity] = shelf
        return shelf.open()

    def grow(self, slot: CacheSlot, capacity: int) -> None:
        """Move a row to room for `capacity` tokens."""
        old = self._shelves[slot.capacity]
        new = self.open(capacity)
        shelf = self._shelves[capacity]
        try:
            for layer, keys in old.keys.items():
                values = old.values[layer]
                shelf.make(layer, keys, values)
                shelf.keys[layer][new.place, :, : slot.capacity] = keys[slot.place]
                shelf.values[layer][new.place, :, : slot.capacity] = values[slot.place]
        except BaseException:
            self.close(new)
            raise
        self.close(slot)
        # the row keeps its slot, so the slot takes the new place
        slot.capacity, slot.place = new.capacity, new.place
        shelf.slots[slot.place] = slot
        if self.tokens > self.limit:
            self._trim()

    def close(self, slot: CacheSlot) -> None:
        """Give up the room of a row."""
        shelf = self._shelves[slot.capacity]
        shelf.close(slot)
        if not shelf.slots:
            del self._shelves[slot.capacity]

    def put_first(self, slots: Sequence[CacheSlot]) -> None:
        """Move rows to the first places of their shelves, in this order. A pass reads a shelf up to its last row, so
        that a pass over these rows then reads no others."""
        counts: dict[int, int] = {}
        for slot in slots:
            place = counts.get(slot.capacity, 0)
            self._shelves[slot.capacity].move(slot, place)
            counts[slot.capacity] = place + 1

    def release(self) -> None:
        """Give all memory back; no row has room afterwards."""
        self._shelves.clear()
        self.parts, self.ready = [], {}

    def copy_tokens(self, slot: CacheSlot, end: int, start: int = 0) -> Held:
        """A copy of a row's tokens at the positions [start, end)."""
        shelf = self._shelves[slot.capacity]
        return {
            layer: (
                keys[slot.place, :, start:end].clone(),
                shelf.values[layer][slot.place, :, start:end].clone(),
            )
            for layer, keys in shelf.keys.items()
        }

    def put(self, slot: CacheSlot, held: Held, length: int, start: int = 0) -> None:
        """Fill a row with the first `length` tokens of a copy, at the positions from `start` on."""
        shelf, end = self._shelves[slot.capacity], start + length
        for layer, (keys, values) in held.items():
            shelf.make(layer, keys, values)
            shelf.keys[layer][slot.place, :, start:end] = keys[:, :length]
            shelf.values[layer][slot.place, :, start:end] = values[:, :length]

    def _trim(self) -> None:
        """Give up all room that no row uses."""
        for shelf in self._shelves.values():
            if shelf.room > len(shelf.slots):
                shelf.resize(len(shelf.slots))

    # ------------------------------------------------------------- passes

    def begin_prefill(
        self, slots: Sequence[CacheSlot], sizes: Sequence[int], starts: Sequence[int], read: int
    ) -> None:
        """The next pass writes `sizes` tokens of each row at positions from `starts` on, and reads `read` tokens of
        cache; 0 where it reads its own tokens only."""
        self.parts, self.ready = [], {}
        self._prefill = _Prefill(slots, sizes, starts, read)

    def begin_decode(
        self, slots: Sequence[CacheSlot], positions: Sequence[int], device: torch.device
    ) -> None:
        """The next pass writes one token per row at its position. The rows are in the order of `order`. Rows without
        room may follow them in the pass."""
        self._prefill = None
        self.parts, self.ready = [], {}
        first = 0
        for capacity, group in groupby(slots, key=lambda slot: slot.capacity):
            places = [slot.place for slot in group]
            last = first + len(places)
            self.parts.append(
                ShelfPart(
                    self._shelves[capacity],
                    first,
                    last,
                    torch.tensor(places, device=device),
                    torch.tensor(list(positions[first:last]), device=device),
                    max(places) + 1,
                    places == list(range(len(places))),
                )
            )
            first = last

    # ------------------------------------------------------------- called by the model

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values [b, kv_heads, T, head_dim]. Returns the keys and values that attention
        reads; those of the pass itself where attention reads the parts.

        Raises:
            PassEnded: the pass must stop.
        """
        self._begin_layer()
        self.layer = layer_idx
        if self._prefill is not None:
            return self._prefilled(self._prefill, keys, values, layer_idx)
        if self.is_recorded:
            self.new = keys, values
            return keys, values
        self.write(layer_idx, keys, values)
        if self.reads_parts:
            return keys, values
        return self._gathered(keys, layer_idx, is_keys=True), self._gathered(
            values, layer_idx, is_keys=False
        )

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write the keys and values [b, kv_heads, 1, head_dim] of a decode pass."""
        for part in self.parts:
            shelf = part.shelf
            shelf.make(layer, keys, values)
            for held, new in ((shelf.keys[layer], keys), (shelf.values[layer], values)):
                rows = part.own_rows(new)
                width = new.shape[-1]
                targets = part.targets(new.shape[1]).to(new.device)
                held.view(-1, width).index_copy_(0, targets, rows.reshape(-1, width))

    def held(
        self, layer: int, keys: Tensor, values: Tensor
    ) -> Iterator[tuple[ShelfPart, int, Tensor, Tensor]]:
        """For a layer that writes the `keys` and `values` of a decode pass itself: each part, how many of its last
        tokens a row sees (0 for all), and where the keys and values of the layer are held.

        Raises:
            PassEnded: the pass must stop.
        """
        self._begin_layer()
        window = self.window(layer)
        for part in self.parts:
            part.shelf.make(layer, keys, values)
            yield part, window, part.shelf.keys[layer], part.shelf.values[layer]

    def written(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values [b, kv_heads, T, head_dim] that the pass has written in this layer. Rows without room
        have none; after the tokens of a row there are zeros."""
        now = self._prefill
        found = []
        if now is None:
            for part in self.parts:
                held = part.shelf.keys[layer], part.shelf.values[layer]
                places, positions = (t.to(held[0].device) for t in (part.places, part.positions))
                found.append([tensor[places, :, positions][:, :, None] for tensor in held])
        else:
            longest = max(now.sizes)
            for slot, size, start in zip(now.slots, now.sizes, now.starts, strict=True):
                shelf = self._shelves[slot.capacity]
                held = shelf.keys[layer], shelf.values[layer]
                own = [tensor[slot.place, :, start : start + size][None] for tensor in held]
                found.append([_padded(tensor, longest) for tensor in own])
        keys, values = (torch.cat(tensors) for tensors in zip(*found, strict=True))
        return keys, values

    def window(self, layer: int) -> int:
        """How many of the last tokens a row sees in a layer; 0 for all."""
        assert self.attention is not None
        return self.attention.window(layer)

    def rooms(
        self, layer: int, keys: Tensor, values: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Sequence[int], Sequence[int]]:
        """For a layer that writes the `keys` and `values` [b, kv_heads, T, head_dim] of a prefill pass itself: where
        those of each row are held [kv_heads, capacity, head_dim], the positions of the first tokens, and the numbers of
        tokens.

        Raises:
            PassEnded: the pass must stop.
        """
        self._begin_layer()
        now = self._prefill
        assert now is not None
        shelves = [self._shelves[slot.capacity] for slot in now.slots]
        for shelf in shelves:
            shelf.make(layer, keys, values)
        pairs = list(zip(shelves, now.slots, strict=True))
        return (
            [shelf.keys[layer][slot.place] for shelf, slot in pairs],
            [shelf.values[layer][slot.place] for shelf, slot in pairs],
            now.starts,
            now.sizes,
        )

    @property
    def is_prefill(self) -> bool:
        """Whether the pass that runs is a prefill pass."""
        return self._prefill is not None

    def _begin_layer(self) -> None:
        self.beat()
        if self.must_stop():
            raise PassEnded(Status.STOPPED)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self._prefill.starts) if self._prefill else 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def _prefilled(
        self, now: _Prefill, keys: Tensor, values: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        for i, (slot, size, start) in enumerate(zip(now.slots, now.sizes, now.starts, strict=True)):
            shelf, end = self._shelves[slot.capacity], start + size
            shelf.make(layer, keys, values)
            shelf.keys[layer][slot.place, :, start:end] = keys[i, :, :size]
            shelf.values[layer][slot.place, :, start:end] = values[i, :, :size]
        if not now.read:
            return keys, values
        if not any(now.starts):
            return _padded(keys, now.read), _padded(values, now.read)
        return self._read(now, keys, layer, is_keys=True), self._read(
            now, values, layer, is_keys=False
        )

    def _read(self, now: _Prefill, new: Tensor, layer: int, *, is_keys: bool) -> Tensor:
        """What the rows of a prefill pass hold [b, kv_heads, T, head_dim], with zeros after the end of their rooms."""
        shelves = [self._shelves[slot.capacity] for slot in now.slots]
        tensors = [(shelf.keys if is_keys else shelf.values)[layer] for shelf in shelves]
        places, first = [slot.place for slot in now.slots], now.slots[0].place
        if len(set(map(id, shelves))) == 1 and places == list(range(first, first + len(places))):
            return _padded(tensors[0][first : first + len(places), :, : now.read], now.read)
        out = new.new_empty(new.shape[0], new.shape[1], now.read, new.shape[3])
        for row, held, place in zip(out, tensors, places, strict=True):
            size = min(held.shape[2], now.read)
            row[:, :size] = held[place, :, :size]
            row[:, size:].zero_()
        return out

    def _gathered(self, new: Tensor, layer: int, *, is_keys: bool) -> Tensor:
        """All rows of the parts [b, kv_heads, T, head_dim], padded with zeros to the longest of them."""
        longest = max(part.shelf.capacity for part in self.parts)
        out = new.new_zeros(new.shape[0], new.shape[1], longest, new.shape[3])
        for part in self.parts:
            held = part.shelf.keys if is_keys else part.shelf.values
            rows = held[layer][part.places.to(new.device)]
            out[part.first : part.last, :, : part.shelf.capacity] = rows
        return out


def order(slot: CacheSlot) -> tuple[int, int]:
    """The sort key of the rows of a decode pass: rows of one shelf follow each other."""
    return slot.capacity, slot.place


def _padded(tensor: Tensor, length: int) -> Tensor:
    """[b, heads, T, dim] with zeros up to T = `length`."""
    missing = length - tensor.shape[2]
    return functional.pad(tensor, (0, 0, 0, missing)) if missing > 0 else tensor


def _nothing() -> None:
    """The `beat` of a cache whose passes nobody watches."""
