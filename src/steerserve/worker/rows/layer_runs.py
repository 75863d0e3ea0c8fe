"""Decoder layers that are run one by one, each on what the model gives it for some positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steerserve.worker.model import truth
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.coded import Codes, is_library_layer
from steerserve.worker.model.comparing import own_code
from steerserve.worker.model.layers import decoder_layers, replaced_forward
from steerserve.worker.model.packing import PackedConv1D, PackedLinear

Pair = tuple[Tensor, Tensor]
"""The keys and the values [runs, heads, T, dim] of a layer."""


class Past:
    """What stands for the cache of the model while one layer runs: the keys and values before its positions."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self._length = length
        self.before: Pair | None = None
        self.new: Pair | None = None

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> Pair:
        self.new = keys, values
        if self.before is None:
            return self.new
        before = (each.expand(len(keys), -1, -1, -1) for each in self.before)
        joined = [torch.cat(pair, 2) for pair in zip(before, self.new, strict=True)]
        return joined[0], joined[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._length + query_length, 0


@dataclass(slots=True)
class Block:
    """The positions [start, end), and what the model gives each layer there beside the stream."""

    start: int
    end: int
    past: Past
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    @property
    def stream(self) -> Tensor:
        """The stream [1, T, hidden] that enters the first layer."""
        args, kwargs = self.given[0]
        found: Tensor = args[0] if args else kwargs["hidden_states"]
        return found


class LayerRuns:
    """Runs the decoder layers of a model one by one."""

    def __init__(self, model: Checkpoint) -> None:
        self._model = model
        self.layers: Sequence[nn.Module] = list(decoder_layers(model.model, model.layers)[1])
        self._kinds: list[type] = []

    def prepare(self) -> None:
        """Learn what each layer gives, in a pass over one token."""
        self._kinds = _layer_kinds(self._model, self.layers)

    def block(self, ids: Sequence[int], start: int, end: int) -> Block:
        """The positions [start, end) of these tokens, with what the model gives each of its layers there. The layers do
        nothing meanwhile."""
        model, block = self._model, Block(start, end, Past(start))
        head = model.model.get_output_embeddings()
        with ExitStack() as stood:
            stood.enter_context(replaced_forward(head, lambda x: x.new_zeros(*x.shape[:-1], 1)))
            for layer, kind in zip(self.layers, self._kinds, strict=True):
                stood.enter_context(replaced_forward(layer, _recording(block, kind)))
            positions = torch.arange(start, end, device=model.device)[None]
            model.model(
                input_ids=torch.tensor([ids[start:end]], device=model.device),
                position_ids=positions,
                attention_mask=model.masks(positions, end),
                past_key_values=block.past,
                use_cache=True,
            )
        return block

    def call(
        self, layer: int, block: Block, hidden: Tensor, before: Pair | None
    ) -> tuple[Tensor, Pair | None]:
        """The stream behind a layer, which the stream `hidden` [runs, T, hidden] enters, and the keys and values that
        the layer makes. `before` are those of the positions before the block."""
        args, kwargs = block.given[layer]
        block.past.before, block.past.new = before, None
        if args:
            args = (hidden, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": hidden}
        out = self.layers[layer](*args, **kwargs)
        new, block.past.before, block.past.new = block.past.new, None, None
        return (out[0] if isinstance(out, tuple | list) else out), new


class WideLayer:
    """A decoder layer that computes in float32, by the library's code. It has a copy of its packed weights, of `size`
    bytes."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._weights = [(one, dense_weight(one)) for one in layer.modules() if is_packed(one)]
        self.size = sum(weight.nbytes for _, weight in self._weights)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While open, the layer computes in float32."""
        with ExitStack() as stack:
            stack.enter_context(own_code(self._layer))
            stack.enter_context(truth.in_float32(self._layer))
            for one, weight in self._weights:
                stack.enter_context(replaced_forward(one, _product(one, weight)))
            yield


def is_packed(layer: nn.Module) -> bool:
    """Whether the weight of a linear layer is laid out for kernels."""
    return isinstance(layer, PackedLinear | PackedConv1D) or is_library_layer(layer)


def dense_weight(layer: Any) -> Tensor:
    """The weight [out, in] of a packed layer in float32."""
    if isinstance(layer, PackedConv1D):
        return layer.weight.t().float()
    if isinstance(layer, PackedLinear):
        return layer.weight.float()
    codes = Codes.of_layer(layer)
    assert codes is not None
    return codes.plain()


def _product(layer: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: functional.linear(rows, weight.to(rows.device), layer.bias)


def joined(pairs: Sequence[Pair]) -> Pair | None:
    """Keys and values, one behind the other."""
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    runs = max(len(keys) for keys, _ in pairs)
    keys, values = (
        torch.cat([each.expand(runs, -1, -1, -1) for each in some], 2)
        for some in zip(*pairs, strict=True)
    )
    return keys, values


def _recording(block: Block, kind: type) -> Callable[..., Any]:
    """A layer that does nothing, and notes what it is given."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        block.given.append((args, kwargs))
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden,) if kind is tuple else hidden

    return forward


def _layer_kinds(model: Checkpoint, layers: Sequence[nn.Module]) -> list[type]:
    """What each layer gives in a pass over one token."""
    kinds: list[type] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        kinds.append(tuple if isinstance(output, tuple | list) else Tensor)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        tokens = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        head = model.model.get_output_embeddings()
        with (
            own_code(model.model),
            replaced_forward(head, lambda x: x.new_zeros(*x.shape[:-1], 1)),
        ):
            model.model(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return kinds
