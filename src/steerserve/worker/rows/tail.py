"""The part of a model behind a site, run again in float32 and backwards: what a change of the site's values does to a
logit.

One layer reads a block of positions at a time, forwards and then backwards, and the engine steps its batch between two
such parts. Only what enters each layer is kept, and a layer is run again on its way back. A block going backwards gives
the gradient of the keys and values of the positions before it, which is added up until these positions have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steerserve.errors import Refusal
from steerserve.worker import memory
from steerserve.worker.model import truth
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.comparing import own_code
from steerserve.worker.model.layers import replaced_forward
from steerserve.worker.model.unembedding import LogitDifference
from steerserve.worker.rows.layer_runs import (
    Block,
    LayerRuns,
    Pair,
    dense_weight,
    is_packed,
    joined,
)
from steerserve.worker.sae.sites import Site

STEP_PRODUCTS = 1 << 28
"""The products of two numbers that one layer computes in one part of the work, where a layer is small enough."""

MOST_TOKENS = 256
"""The most positions of all runs that one part of the work reads."""

TOLERANCE = 0.2
"""The largest difference between the stream after the last layer here and in the model's own pass, relative to its
length. In bfloat16 it is about 0.02."""

Work = Generator[None, None, tuple[Tensor, Tensor | None]]


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
        site: Site | None,
        ids: Sequence[int],
        stream: Tensor,
        first: int,
    ) -> None:
        self._model = model
        self._runs = LayerRuns(model)
        self._layers = self._runs.layers[layer:]
        self._layer = layer
        self._site = site
        self._ids = ids
        self._stream = stream
        self._first = first
        self._blocks: dict[int, list[Block]] = {}
        self._prefix: list[list[Pair]] = [[] for _ in self._layers]
        self.behind = stream[-1:]

    @property
    def moved(self) -> int:
        """The number of positions whose values a run gives."""
        return len(self._ids) - self._first

    def prepare(self) -> Generator[None, None, None]:
        """In parts, read the positions whose values are the model's own."""
        if not self._layers:
            return
        self._runs.prepare()
        yield
        for start in range(0, self._first, self._block_tokens):
            block = self._block(start, min(start + self._block_tokens, self._first))
            hidden = self._stream[block.start : block.end][None]
            for at, pairs in enumerate(self._prefix):
                hidden, new = self._pass(at, block, hidden, joined(pairs), None)
                if new is not None:
                    pairs.append(new)
                yield
        self._prefix = [[whole] if (whole := joined(some)) else [] for some in self._prefix]

    def runs(self) -> int:
        """How many runs are best read at once."""
        return max(1, min(MOST_TOKENS, self._block_tokens) // self.moved)

    def run(self, values: Tensor, target: LogitDifference, *, has_gradient: bool) -> Work:
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
                hidden, new = self._pass(at, block, hidden, joined(made[at]), own)
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
                    (joined(made[at]), number > 0),
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

    def _blocks_of(self, size: int) -> Generator[None, None, list[Block]]:
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

    def _block(self, start: int, end: int) -> Block:
        """The positions [start, end), with what the model gives each of its layers there."""
        with _in_float32(self._model.model, has_gradient=False):
            return self._runs.block(self._ids, start, end)

    def _enters(self, block: Block, values: Tensor) -> Tensor:
        if self._site is None:
            return values[:, block.start - self._first : block.end - self._first]
        return self._stream[block.start : block.end].expand(len(values), -1, -1)

    def _own(self, at: int, block: Block, values: Tensor) -> Tensor | None:
        """The values of the runs at the site, where layer `at` has it."""
        if self._site is None or at > 0:
            return None
        return values[:, block.start - self._first : block.end - self._first]

    def _pass(
        self,
        at: int,
        block: Block,
        hidden: Tensor,
        before: Pair | None,
        values: Tensor | None,
    ) -> tuple[Tensor, Pair | None]:
        with _in_float32(self._layers[at], has_gradient=False):
            return self._call(at, block, hidden, before, values)

    def _back(
        self,
        at: int,
        block: Block,
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
        self, at: int, block: Block, hidden: Tensor, before: Pair | None, values: Tensor | None
    ) -> tuple[Tensor, Pair | None]:
        """The stream behind a layer, and the keys and values that it makes."""
        with nullcontext() if values is None else self._put(values):
            return self._runs.call(self._layer + at, block, hidden, before)

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
            if is_packed(layer):
                stack.enter_context(replaced_forward(layer, _product(layer)))
        stack.enter_context(truth.Differentiable())
        yield


def _product(layer: Any) -> Callable[[Tensor], Tensor]:
    """The product of a layer whose weight is laid out for kernels without a gradient."""
    return lambda rows: functional.linear(rows, dense_weight(layer).to(rows.device), layer.bias)
