"""Passes over one row at a time, with the cache that the library itself makes for an architecture.

They serve architectures that the running batch cannot serve: recurrent layers, masks and position biases of their own,
positions whose meaning changes with the length of the row. Each pass gets the inputs that the library's `generate`
would give it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from steerserve.errors import Refusal
from steerserve.rules.inference import stepping
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker import memory
from steerserve.worker.model.attention import attending_plainly
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.results import PassResult

if TYPE_CHECKING:
    from steerserve.worker.model.checkpoint import Checkpoint

_DEPTH = 6
"""How deep the tensors of a cache may lie within its lists and fields."""


_LAST_ONLY = ("logits_to_keep", "num_logits_to_keep")

Place = tuple[nn.Module, str]
"""A field of a module."""


class Memory(Enum):
    """What a row remembers of its earlier passes: a cache of the library's usual kind, a cache that the model makes,
    or nothing, so that each pass reads the whole text."""

    DYNAMIC = "dynamic"
    OWN = "own"
    NOTHING = "nothing"


@dataclass(slots=True, eq=False)
class PlainSlot(CacheSlot):
    """One row: its tokens [1, T] so far, and what the library carries from pass to pass. `held` has the tensors that
    the model's modules keep of the row."""

    tokens: Tensor
    carried: dict[str, Any] = field(default_factory=dict)
    held: dict[Place, Tensor | None] = field(default_factory=dict)

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that are held for the row between passes."""
        carried = [v for name, v in self.carried.items() if name != "position_ids"]
        return memory.tensors_in([carried, self.held], _DEPTH)


class PlainCache:
    """The rows that are stepped alone. `limit` is not used, because no room is made ahead of its use. Each row counts
    `state_tokens` tokens more than it has room for."""

    def __init__(self, device: torch.device, state_tokens: int = 0) -> None:
        self.limit = 0
        self._device = device
        self._state_tokens = state_tokens
        self._slots: list[PlainSlot] = []
        self._next = 0

    @property
    def tokens(self) -> int:
        """The number of tokens for which room is held."""
        return sum(slot.capacity + self._state_tokens for slot in self._slots)

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that are held for all rows."""
        return (tensor for slot in self._slots for tensor in slot.tensors())

    def open(self, capacity: int) -> PlainSlot:
        """Room for a row of `capacity` tokens."""
        empty = torch.zeros(1, 0, dtype=torch.long, device=self._device)
        slot = PlainSlot(capacity, self._next, empty)
        self._next += 1
        self._slots.append(slot)
        return slot

    def grow(self, slot: CacheSlot, capacity: int) -> None:
        """Let a row have `capacity` tokens. The library makes room for each token by itself."""
        slot.capacity = capacity

    def close(self, slot: CacheSlot) -> None:
        """Give up the room of a row."""
        self._slots.remove(cast(PlainSlot, slot))

    def release(self) -> None:
        """Give all memory back; no row has room afterwards."""
        self._slots.clear()


class PlainPasses:
    """Prefill and decode passes over one row each. `takes_parts` says whether several passes may read a prompt; their
    parts do not depend on other rows. `state_tokens` is the size of what a row holds beside its tokens, counted in
    tokens of `kv_bytes_by_device` bytes.

    A pass may read more tokens than are new in it, where the library reads the text again from its beginning. With
    `attends_plainly` the layers compute attention in the plain way.
    """

    is_alone = True
    has_whole_layers = False
    row_step = 1
    width = stepping.WIDTH

    def __init__(self, host: Checkpoint, memory: Memory, *, attends_plainly: bool = False) -> None:
        self._host = host
        self._model: Any = host.model
        self.memory = memory
        self._attends_plainly = attends_plainly
        self.takes_parts = False
        self.state_tokens = 0
        self.kv_bytes_by_device: dict[torch.device, int] = {}
        self._takes = frozenset(inspect.signature(host.model.forward).parameters)
        self._places: dict[Place, Tensor | None] = {}
        self.device = host.device
        self.vocabulary = host.vocabulary
        self.end_tokens = host.end_tokens

    def attending_plainly(self) -> PlainPasses:
        """Passes over one row each with the same memory, in which the layers compute attention in the plain way."""
        passes = PlainPasses(self._host, self.memory, attends_plainly=True)
        passes.state_tokens = self.state_tokens
        passes.kv_bytes_by_device = self.kv_bytes_by_device
        passes._places = self._places
        return passes

    @property
    def described(self) -> str:
        """How rows are stepped."""
        if self.memory is Memory.NOTHING:
            return "rows are stepped one at a time, and each step reads the whole text again"
        return "rows are stepped one at a time"

    def cache(self) -> PlainCache:
        return PlainCache(self.device, self.state_tokens)

    def prefill(
        self,
        cache: object,
        slots: Sequence[CacheSlot],
        rows: Sequence[Sequence[int]],
        *,
        start: int | Sequence[int],
        with_sums: bool = False,
        wanted: Sequence[int] | None = None,
        must_stop: object = None,
    ) -> PassResult:
        """Read the tokens of the one row from `start` on. The result is that of a pass of the batch. No pass over one
        row is stopped."""
        (slot,), (ids,) = slots, rows
        assert isinstance(slot, PlainSlot)
        self._host.pulse.passing(Activity.PREFILL)
        logits, sums = self._pass(slot, ids, with_sums=with_sums, with_all=wanted is not None)
        every = None if wanted is None else [logits[0, -len(ids) :][wanted[0] :]]
        return PassResult(logits[:, -1], every, sums)

    def decode_step(
        self,
        cache: object,
        slots: Sequence[CacheSlot],
        tokens: Sequence[int],
        positions: Sequence[int],
        must_stop: object = None,
    ) -> PassResult:
        """Read the next token of the one row."""
        (slot,) = slots
        assert isinstance(slot, PlainSlot)
        self._host.pulse.passing(Activity.DECODE)
        logits, _ = self._pass(slot, tokens)
        return PassResult(logits[:, -1])

    def learn(self, ids: Sequence[int], before: Mapping[Place, Tensor | None]) -> None:
        """Learn, from two passes over the prompt `ids`, which tensors of a row the modules of the model hold. `before`
        is what they held before the first pass of the model."""
        cache, held = self.cache(), []
        for _ in range(2):
            self.prefill(cache, [cache.open(len(ids))], [ids], start=0)
            held.append(held_by_modules(self._model))
        self._places = {
            place: before.get(place)
            for place, tensor in held[1].items()
            if tensor is not held[0].get(place)
        }

    # ------------------------------------------------------------- inside

    def _pass(
        self,
        slot: PlainSlot,
        new: Sequence[int],
        *,
        with_sums: bool = False,
        with_all: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The logits [1, T or 1, vocabulary] of a pass in which the tokens `new` are new, and the sums [1, hidden]
        where they are wanted."""
        is_first = not slot.tokens.shape[1]
        slot.tokens = torch.cat([slot.tokens, torch.tensor([list(new)], device=self.device)], 1)
        with attending_plainly(self._model) if self._attends_plainly else nullcontext():
            inputs = self._inputs(slot, len(new), is_first=is_first)
            width = inputs["input_ids"].shape[1]
            for (module, name), beginning in self._places.items():
                setattr(module, name, beginning if is_first else slot.held[module, name])
            out, sums = self._host.call(
                pick=None if with_all else (torch.tensor([0]), torch.tensor([width - 1])),
                sizes=torch.tensor([width]) if with_sums else None,
                **inputs,
            )
        if self.memory is not Memory.NOTHING:
            slot.carried = self._model._update_model_kwargs_for_generation(out, slot.carried)
            slot.held = {place: getattr(*place) for place in self._places}
        return cast(Tensor, out.logits).to(self.device), sums

    def _inputs(self, slot: PlainSlot, new: int, *, is_first: bool) -> dict[str, Any]:
        """The inputs of the pass, as `generate` makes them."""
        if self.memory is Memory.NOTHING:
            return whole(self._model, slot.tokens)
        if is_first:
            slot.carried = self._beginning()
        if "position_ids" in self._takes:
            slot.carried["position_ids"] = torch.arange(slot.tokens.shape[1], device=self.device)[
                None
            ]
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(
            slot.tokens,
            next_sequence_length=None if is_first else new,
            is_first_iteration=is_first,
            **slot.carried,
        )
        # some architectures ask for the last logits only, and a row may need all
        return {k: v for k, v in inputs.items() if k not in _LAST_ONLY} | {"return_dict": True}

    def _beginning(self) -> dict[str, object]:
        """What the library carries into the first pass of a row."""
        carried: dict[str, object] = {"use_cache": True}
        if "attention_mask" in self._takes:
            carried["attention_mask"] = None
        if self.memory is Memory.DYNAMIC:
            name = "past_key_values" if "past_key_values" in self._takes else "cache_params"
            text = self._model.config.get_text_config(decoder=True)
            carried[name] = DynamicCache(config=text)
        return carried


def whole(model: nn.Module, tokens: Tensor) -> dict[str, object]:
    """The inputs of a pass over all tokens [1, T] without a cache."""
    takes = inspect.signature(model.forward).parameters
    has_rest = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    inputs: dict[str, object] = {"input_ids": tokens, "return_dict": True}
    return {**inputs, "use_cache": False} if "use_cache" in takes or has_rest else inputs


def beat_per_layer(model: nn.Module, layers: int, beat: Callable[[], None]) -> None:
    """Have each layer of a pass call `beat`, where the list of layers is found."""
    with suppress(Refusal):
        for layer in decoder_layers(model, layers)[1]:
            layer.register_forward_pre_hook(lambda *_: beat())


def bytes_by_device(slot: PlainSlot) -> dict[torch.device, int]:
    """By device, the bytes of the tensors that are held for a row between passes."""
    return memory.bytes_by_device(slot.tensors())


def held_by_modules(model: nn.Module) -> dict[Place, Tensor | None]:
    """The fields of modules that hold a tensor or nothing, and that are neither parameters nor buffers."""
    return {
        (module, name): value
        for module in model.modules()
        for name, value in vars(module).items()
        if value is None or isinstance(value, Tensor)
    }
