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

ChangeHeads = Callable[[Tensor], Tensor]
"""Changes queries, keys or values [rows, heads, T, dim]. Attention computes with what this returns."""

_NOTED = "noted_operands"
"""The field of a module that has the notes of its calls, while there are some."""


class Operands(TorchFunctionMode):
    """Notes what the attention of a module multiplies, while open. `query` is [rows, heads, T, dim]. `key` and `value`
    have all positions that attention reads, [rows, heads, S, dim]; a head of keys may be repeated for the heads of
    queries that share it. Each is None where it was not seen. `change` changes the queries before attention
    multiplies them."""

    def __init__(self, module: nn.Module, heads: int, change: ChangeHeads | None = None) -> None:
        super().__init__()
        self._module = module
        self._heads = heads
        self._change = change
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
            args, given = self._noted(func, args, given)
        return func(*args, **given)

    def tell_query(self, query: Tensor) -> Tensor:
        """Change the queries [rows, heads, T, dim], and note the changed ones, which are returned."""
        self.query = query if self._change is None else self._change(query)
        return self.query

    def _noted(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note the operands of a call. Returns the arguments of the call, in which the queries are changed."""
        if func is _ATTENTION:
            query, self.key, self.value = args[:3]
            if self.query is None:
                args = (self.tell_query(query), *args[1:])
        elif func in _ADDED:
            if len(args) > 2:
                args = (args[0], self._multiplied(*args[1:3]), *args[2:])
            else:
                first = self._multiplied(kwargs["batch1"], kwargs["batch2"])
                kwargs = {**kwargs, "batch1": first}
        elif func in _PRODUCTS:
            args = (self._multiplied(args[0], args[1]), *args[1:])
        return args, kwargs

    def _multiplied(self, first: Tensor, second: Tensor) -> Tensor:
        """Note a product of queries and keys, or of probabilities and values, where it is one of heads. Returns the
        first factor."""
        if min(first.dim(), second.dim()) < 3:
            return first
        by_head, other = (
            t if t.dim() == 4 else t.unflatten(0, (-1, self._heads)) for t in (first, second)
        )
        if self.key is not None:
            self.value = other
            return first
        self.key = other.transpose(2, 3)
        return first if self.query is not None else self.tell_query(by_head).reshape(first.shape)


def is_noted(module: nn.Module) -> bool:
    """Whether somebody notes what the attention of this module multiplies."""
    return _NOTED in vars(module)


def tell_query(module: nn.Module, query: Tensor) -> Tensor:
    """Tell those who note the attention of this module its queries [rows, heads, T, dim]. Returns the changed
    queries, which attention must multiply."""
    for noted in reversed(vars(module).get(_NOTED, ())):
        query = noted.tell_query(query)
    return query
