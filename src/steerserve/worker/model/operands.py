"""What the attention of a layer multiplies: its queries, keys and values, as they are noted while it runs.

Architectures compute attention in several ways: by a function of the library, by products of their own, or by compiled
functions here. Where a function knows its queries, it tells them. Otherwise the first and the second product of heads
in the code of the layer have the queries, the keys and the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_ATTENTION = functional.scaled_dot_product_attention
_ADDED = frozenset({torch.baddbmm, Tensor.baddbmm})
_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})

_NOTED = "noted_operands"
"""The field of a module that has the notes of its calls, while there are some."""


class Operands(TorchFunctionMode):
    """Notes what the attention of a module multiplies, while open. `query` is [rows, heads, T, dim]. `key` and `value`
    have all positions that attention reads, [rows, heads, S, dim]; a head of keys may be repeated for the heads of
    queries that share it. Each is None where it was not seen."""

    def __init__(self, module: nn.Module, heads: int) -> None:
        super().__init__()
        self._module = module
        self._heads = heads
        self.query: Tensor | None = None
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def __enter__(self) -> Operands:
        vars(self._module).setdefault(_NOTED, []).append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        vars(self._module)[_NOTED].remove(self)
        if not vars(self._module)[_NOTED]:
            del vars(self._module)[_NOTED]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if self.value is None:
            self._note(func, args, given)
        return func(*args, **given)

    def _note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if func is _ATTENTION:
            self.query = args[0] if self.query is None else self.query
            self.key, self.value = args[1], args[2]
        elif func in _ADDED:
            batches = args[1:3] if len(args) > 2 else (kwargs["batch1"], kwargs["batch2"])
            self._multiply(*batches)
        elif func in _PRODUCTS:
            self._multiply(args[0], args[1])

    def _multiply(self, first: Tensor, second: Tensor) -> None:
        """A product of queries and keys, or of probabilities and values, where it is one of heads."""
        if min(first.dim(), second.dim()) < 3:
            return
        first, second = (
            t if t.dim() == 4 else t.unflatten(0, (-1, self._heads)) for t in (first, second)
        )
        if self.key is None:
            self.query = first if self.query is None else self.query
            self.key = second.transpose(2, 3)
        else:
            self.value = second


def is_noted(module: nn.Module) -> bool:
    """Whether somebody notes what the attention of this module multiplies."""
    return _NOTED in vars(module)


def tell_query(module: nn.Module, query: Tensor) -> None:
    """The attention of this module multiplies these queries [rows, heads, T, dim]."""
    for noted in vars(module).get(_NOTED, ()):
        noted.query = query
