"""A cache that changes keys or values before it holds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache

from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.operands import ChangeHeads

_NAMES = ("past_key_values", "layer_past")
"""What the library's attention calls its cache."""


class WrittenCache:
    """Stands for the `cache` of a call of attention, and changes keys or values before they are written. Compiled
    functions write to a `KvCache` only, so the library's code runs with this one."""

    def __init__(
        self, cache: Any, keys: ChangeHeads | None = None, values: ChangeHeads | None = None
    ) -> None:
        self.cache = cache
        self._keys = keys
        self._values = values

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        keys = keys if self._keys is None else self._keys(keys)
        values = values if self._values is None else self._values(values)
        return self.cache.update(keys, values, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def with_cache(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    make: Callable[[Any], WrittenCache],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of attention with another cache, which is made of the one that they have. A call without
    a cache gets an empty one.

    Raises:
        TypeError: the module takes no cache.
    """
    for place, value in enumerate(args):
        if _is_cache(value):
            return (*args[:place], make(value), *args[place + 1 :]), kwargs
    for name, value in kwargs.items():
        if _is_cache(value):
            return args, {**kwargs, name: make(value)}
    takes = inspect.signature(module.forward).parameters
    for name in _NAMES:
        if name in takes:
            return args, {**kwargs, name: make(DynamicCache())}
    raise TypeError(f"{type(module).__name__} takes no cache in which keys could be written")


def kv_cache_in(given: Iterable[object]) -> KvCache | None:
    """The cache of the batch among the arguments of a call of attention."""
    for value in given:
        while isinstance(value, WrittenCache):
            value = value.cache
        if isinstance(value, KvCache):
            return value
    return None


def _is_cache(value: object) -> bool:
    return hasattr(value, "update") and hasattr(value, "get_seq_length")
