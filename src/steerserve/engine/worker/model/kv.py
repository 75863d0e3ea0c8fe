"""The KV cache of a group of rows: keys and values per layer, grown on demand, rows kept compact.

It knows nothing of requests or sampling. A model sees it as its `past_key_values`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Held = dict[int, tuple[Tensor, Tensor]]
"""One row's keys and values [kv_heads, tokens, head_dim] by layer."""


class SlotCache:
    """Keys and values [rows, kv_heads, length, head_dim] per layer, in the dtype the model writes.

    Active rows lie in [0, B). Before each forward pass, `begin_prefill` or `begin_decode` says where the pass writes.
    The tensors are made in the first pass, because the shape of the heads is known only then. `beat` is called by each
    layer of a pass.
    """

    is_compileable = False

    def __init__(self) -> None:
        self.beat: Callable[[], None] = _nothing
        self.rows = 0
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._row = 0
        self._start = 0
        self._decode: tuple[int, Tensor, Tensor, int] | None = None

    def resize(self, rows: int, length: int, keep: int = 0) -> None:
        """Hold exactly `rows` rows of `length` tokens; the first `keep` rows keep the tokens that fit.

        Where memory runs out meanwhile, some layers are resized and some are not; the cache then counts as the
        smaller of both sizes.
        """
        asked = rows, length
        self.rows, self.length = min(rows, self.rows), min(length, self.length)
        for held in (self._keys, self._values):
            for layer, old in held.items():
                new = old.new_zeros(rows, old.shape[1], length, old.shape[3])
                kept = min(length, old.shape[2])
                new[:keep, :, :kept] = old[:keep, :, :kept]
                held[layer] = new
        self.rows, self.length = asked

    @property
    def bytes_by_device(self) -> dict[torch.device, int]:
        """By device, the number of bytes that one token of one row takes over all layers."""
        sizes: dict[torch.device, int] = {}
        for tensor in (*self._keys.values(), *self._values.values()):
            size = tensor.shape[1] * tensor.shape[3] * tensor.element_size()
            sizes[tensor.device] = sizes.get(tensor.device, 0) + size
        return sizes

    def release(self) -> None:
        """Give the memory back; the cache is empty afterwards."""
        self.rows = self.length = 0
        self._keys.clear()
        self._values.clear()

    def begin_prefill(self, row: int, start: int) -> None:
        """The next pass writes rows from `row` on, at positions from `start` on."""
        self._row, self._start, self._decode = row, start, None

    def begin_decode(self, positions: Tensor, length: int) -> None:
        """The next pass writes one token per row at `positions` [B], and reads `length` tokens of each."""
        count = positions.shape[0]
        self._decode = (count, torch.arange(count, device=positions.device), positions, length)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row over another."""
        for held in (self._keys, self._values):
            for tensor in held.values():
                tensor[target, :, :length] = tensor[source, :, :length]

    def take(self, row: int, length: int) -> Held:
        """A copy of a row's first `length` tokens."""
        return {
            layer: (keys[row, :, :length].clone(), self._values[layer][row, :, :length].clone())
            for layer, keys in self._keys.items()
        }

    def put(self, row: int, held: Held, length: int) -> None:
        """Fill a row with the first `length` tokens of a copy."""
        for layer, (keys, values) in held.items():
            if layer not in self._keys:
                self._make(layer, keys[None], values[None])
            self._keys[layer][row, :, :length] = keys[:, :length]
            self._values[layer][row, :, :length] = values[:, :length]

    # ------------------------------------------------------------- called by the model

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values [b, kv_heads, T, head_dim]. Returns the keys and values that attention
        reads."""
        self.beat()
        if layer_idx not in self._keys:
            self._make(layer_idx, keys, values)
        held_keys, held_values = self._keys[layer_idx], self._values[layer_idx]
        if self._decode is not None:
            count, rows, positions, length = self._decode
            rows, positions = rows.to(keys.device), positions.to(keys.device)
            held_keys[rows, :, positions] = keys[:, :, 0]
            held_values[rows, :, positions] = values[:, :, 0]
            return held_keys[:count, :, :length], held_values[:count, :, :length]
        first, last = self._row, self._row + keys.shape[0]
        end = self._start + keys.shape[2]
        held_keys[first:last, :, self._start : end] = keys
        held_values[first:last, :, self._start : end] = values
        if self._start == 0:
            return keys, values
        return held_keys[first:last, :, :end], held_values[first:last, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._decode is not None else self._start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def _make(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Make the tensors of a layer, with the heads and dtypes of `keys` and `values` [b, kv_heads, T, head_dim]."""
        self._keys[layer] = keys.new_zeros(self.rows, keys.shape[1], self.length, keys.shape[3])
        self._values[layer] = values.new_zeros(
            self.rows, values.shape[1], self.length, values.shape[3]
        )


def _nothing() -> None:
    """The `beat` of a cache whose passes nobody watches."""
