"""The part of a model behind a site, run again in float32 and backwards: what a change of the site's values does to a
logit.

One layer reads a block of positions at a time, forwards and then backwards, and the engine steps its batch between two
such parts. Only what enters each layer is kept, and a layer is run again on its way back. A block going backwards gives
the gradient of the keys and values of the positions before it, which is added up until these positions have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from steerserve.errors import Refusal
from steerserve.worker import memory
from steerserve.worker.model import truth
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.coded import Codes, is_library_layer
from steerserve.worker.model.comparing import own_code
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.packing import PackedConv1D, PackedLinear
from steerserve.worker.sae.sites import AtSite, Handle

STEP_PRODUCTS = 1 << 28
"""The products of two numbers that one layer computes in one part of the work, where a layer is small enough."""

MOST_TOKENS = 256
"""The most positions of all runs that one part of the work reads."""

TOLERANCE = 0.2
"""The largest difference between the stream after the last layer here and in the model's own pass, relative to its
length. In bfloat16 it is about 0.02."""

Work = Generator[None, None, tuple[Tensor, Tensor | None]]
Pair = tuple[Tensor, Tensor]
"""The keys and the values [runs, heads, T, dim] of a layer."""


class InnerSite(Protocol):
    """A site within a layer."""

    def hook(self, edit: AtSite) -> Handle: ...


class Target(Protocol):
    """The number that is attributed."""

    def read(self, stream: Tensor) -> Work:
        """The number [runs] for the stream behind the last layer [runs, hidden], and its gradient [runs, hidden]."""


class _Past:
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
class _Block:
    """The positions [start, end), and what the model gives each layer there beside the stream."""

    start: int
    end: int
    past: _Past
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


class Tail:
    """The layers from `layer` on, for the tokens `ids`, of which the last one's logits are read. `stream` [T, hidden]
    enters the first of them. `site` is a site within this layer; without one the values of the runs are the stream
    itself. The values of the runs take the place of the model's own from the position `first` on. `behind` is the
    stream [runs, hidden] behind the last layer in the last runs.
    """

    def __init__(
        self,
        model: Checkpoint,
        layer: int,
        site: InnerSite | None,
        ids: Sequence[int],
        stream: Tensor,
        first: int,
    ) -> None:
        self._model = model
        _, stack = decoder_layers(model.model, model.layers)
        self._layers = list(stack)[layer:]
        self._layer = layer
        self._site = site
        self._ids = ids
        self._stream = stream
        self._first = first
        self._blocks: dict[int, list[_Block]] = {}
        self._prefix: list[list[Pair]] = [[] for _ in self._layers]
        self._kinds: list[type] = []
        self.behind = stream[-1:]

    @property
    def moved(self) -> int:
        """The number of positions whose values a run gives."""
        return len(self._ids) - self._first

    def prepare(self) -> Generator[None, None, None]:
        """In parts, read the positions whose values are the model's own."""
        if not self._layers:
            return
        self._kinds = _layer_kinds(self._model)
        yield
        for start in range(0, self._first, self._block_tokens):
            block = self._block(start, min(start + self._block_tokens, self._first))
            hidden = self._stream[block.start : block.end][None]
            for at, pairs in enumerate(self._prefix):
                hidden, new = self._pass(at, block, hidden, _joined(pairs), None)
                if new is not None:
                    pairs.append(new)
                yield
        self._prefix = [[joined] if (joined := _joined(some)) else [] for some in self._prefix]

    def runs(self) -> int:
        """How many runs are best read at once."""
        return max(1, min(MOST_TOKENS, self._block_tokens) // self.moved)

    def run(self, values: Tensor, target: Target, *, has_gradient: bool) -> Work:
        """In parts, the target [runs] of runs with these values [runs, moved, width], and its gradient by them, of
        the same shape, where that is asked for. `prepare` comes before."""
        blocks = yield from self._blocks_of(max(1, self._block_tokens // len(values)))
        entered: list[list[Tensor]] = [[] for _ in blocks]
        made: list[list[Pair]] = [list(pairs) for pairs in self._prefix]
        hidden = values
        for number, block in enumerate(blocks):
            hidden = self._enters(block, values)
            for at, _ in enumerate(self._layers):
                entered[number].append(hidden)
                own = self._own(at, block, values)
                hidden, new = self._pass(at, block, hidden, _joined(made[at]), own)
                if new is not None:
                    made[at].append(new)
                yield
        self.behind = hidden[:, -1]
        found, gradient = yield from target.read(self.behind)
        if not has_gradient:
            return found, None
        assert gradient is not None
        total = torch.zeros_like(values)
        if not blocks:
            total[:, -1] = gradient
            return found, total
        owed: list[Pair | None] = [None for _ in self._layers]
        for number, block in reversed(list(enumerate(blocks))):
            size = block.end - block.start
            back = values.new_zeros(len(values), size, gradient.shape[-1])
            if number == len(blocks) - 1:
                back[:, -1] = gradient
            for at in reversed(range(len(self._layers))):
                new = made[at].pop() if len(made[at]) > len(self._prefix[at]) else None
                back, owed[at] = self._back(
                    at,
                    block,
                    entered[number][at],
                    (_joined(made[at]), number > 0),
                    self._own(at, block, values),
                    (back, owed[at] if new is not None else None),
                )
                yield
            total[:, block.start - self._first : block.end - self._first] = back
            entered[number] = []
        return found, total

    # ------------------------------------------------------------- inside

    @property
    def _block_tokens(self) -> int:
        """The positions of all runs that a layer reads in one part of the work."""
        model = self._model
        weights = (model.parameters - model.vocabulary * model.hidden_size) // model.layers
        return max(16, min(MOST_TOKENS, STEP_PRODUCTS // max(1, weights)))

    def _blocks_of(self, size: int) -> Generator[None, None, list[_Block]]:
        """The positions whose values the runs give, in blocks of this size; none where there are no layers."""
        if not self._layers:
            return []
        if size not in self._blocks:
            blocks = []
            for start in range(self._first, len(self._ids), size):
                blocks.append(self._block(start, min(start + size, len(self._ids))))
                yield
            self._blocks[size] = blocks
        return self._blocks[size]

    def _block(self, start: int, end: int) -> _Block:
        """A block with what the model gives each of its layers at these positions. The layers do nothing meanwhile."""
        model, block = self._model, _Block(start, end, _Past(start))
        _, stack = decoder_layers(model.model, model.layers)
        head = model.model.get_output_embeddings()
        with ExitStack() as stood:
            stood.enter_context(_in_float32(model.model, has_gradient=False))
            stood.enter_context(_standing_in(head, lambda x: x.new_zeros(*x.shape[:-1], 1)))
            for layer, kind in zip(stack, self._kinds, strict=True):
                stood.enter_context(_standing_in(layer, _recording(block, kind)))
            positions = torch.arange(start, end, device=model.device)[None]
            model.model(
                input_ids=torch.tensor([self._ids[start:end]], device=model.device),
                position_ids=positions,
                attention_mask=model.masks(positions, end),
                past_key_values=block.past,
                use_cache=True,
            )
        block.given = block.given[self._layer :]
        return block

    def _enters(self, block: _Block, values: Tensor) -> Tensor:
        if self._site is None:
            return values[:, block.start - self._first : block.end - self._first]
        return self._stream[block.start : block.end].expand(len(values), -1, -1)

    def _own(self, at: int, block: _Block, values: Tensor) -> Tensor | None:
        """The values of the runs at the site, where layer `at` has it."""
        if self._site is None or at > 0:
            return None
        return values[:, block.start - self._first : block.end - self._first]

    def _pass(
        self,
        at: int,
        block: _Block,
        hidden: Tensor,
        before: Pair | None,
        values: Tensor | None,
    ) -> tuple[Tensor, Pair | None]:
        with _in_float32(self._layers[at], has_gradient=False):
            return self._call(at, block, hidden, before, values)

    def _back(
        self,
        at: int,
        block: _Block,
        hidden: Tensor,
        past: tuple[Pair | None, bool],
        values: Tensor | None,
        back: tuple[Tensor, Pair | None],
    ) -> tuple[Tensor, Pair | None]:
        """The gradient by what enters a layer, and by all keys and values before its positions."""
        before, is_owed = past
        gradient, owed = back
        with torch.inference_mode(False), torch.enable_grad():
            leaf = (hidden if values is None else values).detach().clone().requires_grad_()
            held: tuple[Tensor, ...] = ()
            if before is not None and is_owed:
                held = tuple(
                    each.expand(len(leaf), -1, -1, -1).detach().clone().requires_grad_()
                    for each in before
                )
                before = held[0], held[1]
            with _in_float32(self._layers[at], has_gradient=True):
                entering = leaf if values is None else hidden
                moved = None if values is None else leaf
                out, new = self._call(at, block, entering, before, moved)
            outputs, gradients = [out], [gradient]
            if owed is not None and new is not None:
                start = owed[0].shape[2] - new[0].shape[2]
                outputs += new
                gradients += [each[:, :, start:] for each in owed]
            wanted = [
                (each, given)
                for each, given in zip(outputs, gradients, strict=True)
                if each.requires_grad
            ]
            found = torch.autograd.grad(
                [each for each, _ in wanted],
                [leaf, *held],
                [given.to(each.device, copy=True) for each, given in wanted],
                allow_unused=True,
                materialize_grads=True,
            )
        if not held:
            return found[0], None
        if owed is None:
            return found[0], (found[1], found[2])
        size = held[0].shape[2]
        return found[0], (found[1] + owed[0][:, :, :size], found[2] + owed[1][:, :, :size])

    def _call(
        self, at: int, block: _Block, hidden: Tensor, before: Pair | None, values: Tensor | None
    ) -> tuple[Tensor, Pair | None]:
        """The stream behind a layer, and the keys and values that it makes."""
        layer, (args, kwargs) = self._layers[at], block.given[at]
        block.past.before, block.past.new = before, None
        if args:
            args = (hidden, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": hidden}
        hooked = nullcontext() if values is None else self._put(values)
        with hooked:
            out = layer(*args, **kwargs)
        new, block.past.before, block.past.new = block.past.new, None, None
        return (out[0] if isinstance(out, tuple | list) else out), new

    @contextmanager
    def _put(self, values: Tensor) -> Iterator[None]:
        assert self._site is not None
        handle = self._site.hook(lambda own: values - own)
        try:
            yield
        finally:
            handle.remove()


def check_memory(model: Checkpoint, layer: int, tokens: int, moved: int) -> None:
    """Check that there is memory for the layers from `layer` on, for so many tokens of which `moved` have gradients.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    held = model.kv_bytes_per_token * 4 / model.dtype.itemsize / model.layers
    runs = max(moved, min(MOST_TOKENS, moved * 16))
    each = tokens * held + runs * (4 * model.hidden_size + 3 * held)
    size = round((model.layers - layer) * each) + 4 * tokens * model.hidden_size
    available = memory.free(model.device)
    if size > available:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the gradients of {tokens} tokens take {size >> 20} MiB; {available >> 20} MiB are free on {model.device}",
            **memory.described(model.device),
            prompt_tokens=tokens,
        )


def check_stream(found: Tensor, own: Tensor) -> None:
    """Check that the stream after the last layer [hidden] is that of the model's own pass.

    Raises:
        Refusal: SAE_INCOMPATIBLE where the layers of the architecture do more than they are given here.
    """
    own = own.float()
    difference = float((found - own).norm() / own.norm().clamp_min(torch.finfo(torch.float32).tiny))
    if not difference <= TOLERANCE:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            "method: the layers of this architecture cannot be run one by one, so it has no gradients; "
            f"the stream after the last layer differs by {difference:.1%}; `direct` does not need them",
            difference=difference,
        )


@contextmanager
def _in_float32(module: nn.Module, *, has_gradient: bool) -> Iterator[None]:
    """While open, the module computes in float32 by the library's code, by functions that have gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(has_gradient))
        stack.enter_context(own_code(module))
        for layer in module.modules():
            if isinstance(layer, PackedLinear | PackedConv1D) or is_library_layer(layer):
                stack.enter_context(_standing_in(layer, _product(layer)))
        stack.enter_context(truth.Differentiable())
        yield


def _product(layer: Any) -> Callable[[Tensor], Tensor]:
    """The product of a layer whose weight is laid out for kernels without a gradient."""

    def forward(rows: Tensor) -> Tensor:
        if isinstance(layer, PackedConv1D):
            weight = layer.weight.t()
        elif isinstance(layer, PackedLinear):
            weight = layer.weight
        else:
            codes = Codes.of_layer(layer)
            assert codes is not None
            weight = codes.plain()
        return functional.linear(rows, weight.to(rows.device), layer.bias)

    return forward


@contextmanager
def _standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        vars(module).pop("forward")
        if before is not None:
            vars(module)["forward"] = before


def _recording(block: _Block, kind: type) -> Callable[..., Any]:
    """A layer that does nothing, and notes what it is given."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        block.given.append((args, kwargs))
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden,) if kind is tuple else hidden

    return forward


def _layer_kinds(model: Checkpoint) -> list[type]:
    """What each layer gives in a pass over one token."""
    _, stack = decoder_layers(model.model, model.layers)
    kinds: list[type] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        kinds.append(tuple if isinstance(output, tuple | list) else Tensor)

    hooks = [layer.register_forward_hook(note) for layer in stack]
    try:
        tokens = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        head = model.model.get_output_embeddings()
        with own_code(model.model), _standing_in(head, lambda x: x.new_zeros(*x.shape[:-1], 1)):
            model.model(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return kinds


def _joined(pairs: Sequence[Pair]) -> Pair | None:
    """Keys and values, one behind the other."""
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    runs = max(len(keys) for keys, _ in pairs)
    keys, values = (
        torch.cat([each.expand(runs, -1, -1, -1) for each in some], 2)
        for some in zip(*pairs, strict=True)
    )
    return keys, values
