"""How near values in the model's precision are to the values that the same weights give in float32.

A fast way of computing a layer rounds at other places than the model's own code, so its values differ from the code's.
The question is whether they are as near to the truth: the same code, over the same weights, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from steerserve.rules.models.nearness import ROUNDING, Distance, distance_of
from steerserve.worker.model.coded import Codes, is_library_layer
from steerserve.worker.model.layers import replaced_forward

POSITIONS = 300
"""The tokens over which a whole model is compared."""

_FEWEST_POSITIONS = 48
_QUICK_PARAMETERS = 1_000_000_000
"""A larger model on the host is compared over fewer tokens, because each takes the longer."""

_FEWEST_TOKENS = 30
"""A text that a tokenizer makes into fewer different tokens says little about the model."""

_HALF = (torch.bfloat16, torch.float16)
_NARROWING = ("bfloat16", "half")
_LOOKUP = "embedding"
_FIELDS = ("__get__", "__set__", "__delete__")

TEXT = """\
The harbour office opened at six, before the first boats came in. Maria Oliveira hung her coat behind the door, lit the
stove, and read the weather from the wire: wind from the north-west, 18 knots, a fall in pressure of 4.2 millibars since
midnight. "That will keep them close to the shore," she said to nobody, and wrote the figure into the book.

By half past seven eleven boats had paid their fee of $3.50 each. What the others had caught, and whether they had sold
it elsewhere, she could only guess; her predecessor used to say that a fisherman tells the truth twice a year. In 1974 a
committee had looked into the question. It found that between 12% and 15% of all landings were never weighed, mostly
because the scales were broken, not because anybody wanted to cheat.

def landed(boats):
    # the weight of all boats, in kilograms
    return sum(boat["kg"] for boat in boats if boat["paid"])

The method of least squares, published by Legendre in 1805 and claimed by Gauss soon after, chooses the line for which
the sum of the squared errors is smallest. If x and y are measured without error in x, the slope is the covariance of
both divided by the variance of x. It is easily pulled aside by one bad point, and so a careful person plots the data
first. Why do so few people do it? Perhaps because a number looks more certain than a picture.

User: Could you tell me how long the ferry takes?
Assistant: The crossing to the island takes about forty minutes in summer. In winter the company runs a smaller ship,
which needs an hour, and on Sundays there is only one departure, at 10:15. Shall I look up the fare as well?

Les bateaux sont partis avant l'aube. Die Glocke der alten Kirche schlug neun, und niemand hatte es eilig.
"""
"""Natural text of several kinds, written for this purpose."""


def natural_tokens(encoded: Sequence[int], vocabulary: int) -> list[int]:
    """`POSITIONS` tokens of natural text, from the tokens of `TEXT`. Where the tokenizer does not know such text, they
    are drawn from the whole vocabulary, the same at every load."""
    tokens = [token for token in encoded if token < vocabulary]
    if len(set(tokens)) >= _FEWEST_TOKENS:
        return (tokens * -(-POSITIONS // len(tokens)))[:POSITIONS]
    source = torch.Generator().manual_seed(0)
    drawn: list[int] = torch.randint(0, vocabulary, (POSITIONS,), generator=source).tolist()
    return drawn


def positions(parameters: int, *, is_on_host: bool) -> int:
    """Over how many tokens a model of so many parameters is compared."""
    if not is_on_host or parameters <= _QUICK_PARAMETERS:
        return POSITIONS
    return max(_FEWEST_POSITIONS, POSITIONS * _QUICK_PARAMETERS // parameters)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """While open, every function of the tensor library gets and gives float32 where it would have half precision, and
    layers of bitsandbytes multiply by the numbers that their codes stand for. Modules read their weights widened, one
    call at a time, so that no second copy of the model is made. Code that writes into a parameter does not see what it
    wrote."""
    with ExitStack() as stack:
        for layer in model.modules():
            if is_library_layer(layer) and (codes := Codes.of_layer(layer)) is not None:
                stack.enter_context(_multiplied_plainly(layer, codes))
        stack.enter_context(_Float32())
        yield


def _multiplied_plainly(layer: nn.Linear, codes: Codes) -> AbstractContextManager[None]:
    def forward(rows: Tensor) -> Tensor:
        return functional.linear(rows, codes.plain().to(rows.device), layer.bias)

    return replaced_forward(layer, forward)


class _Float32(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _FIELDS:
            return func(*args, **(kwargs or {}))
        if name in _NARROWING:
            return args[0].float()
        if name == _LOOKUP:
            # the rows that are looked up are widened, and not the whole table
            return widened(func(*args, **(kwargs or {})), self._wide)
        return func(*widened(args, self._wide), **widened(kwargs or {}, self._wide))

    @staticmethod
    def _wide(tensor: Tensor) -> Tensor:
        return wide(tensor)


class Differentiable(_Float32):
    """As `in_float32`, for functions that are differentiated by the activations. No gradient may read a tensor that was
    made in inference mode, such as the weights, so these are copied."""

    @staticmethod
    def _wide(tensor: Tensor) -> Tensor:
        made = wide(tensor)
        return made.clone() if made.is_inference() else made


def wide(tensor: Tensor) -> Tensor:
    """A tensor in float32 where it has half precision. A weight in the layout of oneDNN, which the library widens in no
    other way, is laid out plainly first."""
    if tensor.dtype not in _HALF:
        return tensor
    return (tensor.to_dense() if tensor.is_mkldnn else tensor).float()


def widened(value: Any, each: Callable[[Tensor], Tensor] = wide) -> Any:
    """A value with float32 in place of half precision, in tensors, dtypes, lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return each(value)
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _HALF else value
    if type(value) in (list, tuple):
        return type(value)(widened(one, each) for one in value)
    if type(value) is dict:
        return {key: widened(one, each) for key, one in value.items()}
    return value


def off(found: Tensor, true: Tensor) -> Tensor:
    """By how much rows [..., n] are off those of float32: the length of the difference over the length of the true row,
    [rows]."""
    found, true = (rows.float().flatten(0, -2) for rows in (found, true))
    least = torch.finfo(torch.float32).tiny
    lengths: Tensor = torch.linalg.vector_norm(true, dim=-1).clamp_min(least)
    differences: Tensor = torch.linalg.vector_norm(found - true, dim=-1)
    return differences / lengths


def rounding(dtype: torch.dtype) -> float:
    """The part of a number by which a result in this precision may be off after a sum of two rounded numbers."""
    return ROUNDING[named(dtype)] / 2


def named(dtype: torch.dtype) -> str:
    """The name of a dtype in the rules, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def distance(each: Tensor) -> Distance:
    """The distance over all positions, of `off` for each."""
    return distance_of(each.tolist())
