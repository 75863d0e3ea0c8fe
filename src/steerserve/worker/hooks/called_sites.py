"""The sites of a decode pass at which rows do more than adding: they read, clamp or ablate.

What they do depends on conditions and positions, which change from token to token, so a CUDA graph cannot hold it. A
recorded pass is cut at these sites, and the edits are called between two of its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor

PlaceName = tuple[str, str]
"""The path of a module, and the name of the site there."""

Cut = Callable[[Callable[[Any], Tensor], Tensor], Tensor]
"""Ends a piece of a recorded pass. Gets what makes the tensor of a site at each replay, and a tensor of that shape.
Returns the tensor that the next piece reads."""


class Unlike(Exception):
    """A replayed pass did not do what a plain pass does."""


class _Mode(Enum):
    CALL = "call"
    SKIP = "skip"
    NOTE = "note"
    CHECK = "check"


class SiteCalls:
    """Makes the tensors of the called sites of one pass. `cut` is there while a pass is recorded."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._mode = _Mode.CALL
        self._noted: dict[PlaceName, tuple[Tensor, Tensor]] = {}
        self.made: list[PlaceName] = []

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """While open, rows do nothing at the sites, because a recording computes no values that they could read."""
        with self._in(_Mode.SKIP):
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While open, the values and what the rows make of them are kept, for a pass under `checked`."""
        with self._in(_Mode.NOTE):
            yield

    @contextmanager
    def checked(self) -> Iterator[None]:
        """While open, each site must have the value that was noted. The tensor that was made of it then is used again:
        if the edits ran a second time, rows would count them twice."""
        try:
            with self._in(_Mode.CHECK):
                yield
        finally:
            self._noted.clear()

    def begin(self) -> None:
        """Forget which sites were made."""
        self.made.clear()

    def at(
        self, name: PlaceName, value: Tensor, tensor: Tensor, make: Callable[[], Tensor]
    ) -> Tensor:
        """The new tensor of a site: what `make` makes of its `value` now and, where the pass is recorded, at each
        replay. `tensor` is the tensor of the site before."""
        if self.cut is None:
            return self._made(name, value, tensor, make)
        return self.cut(lambda _: self._made(name, value, tensor, make), tensor)

    def _made(
        self, name: PlaceName, value: Tensor, tensor: Tensor, make: Callable[[], Tensor]
    ) -> Tensor:
        self.made.append(name)
        if self._mode is _Mode.SKIP:
            return tensor
        if self._mode is _Mode.CHECK:
            before, after = self._noted[name]
            if not is_same(before, value):
                raise Unlike(
                    f"a replayed pass has other bits than a plain pass at {' of '.join(name[::-1])}"
                )
            return after
        after = make()
        if self._mode is _Mode.NOTE:
            self._noted[name] = value.clone(), after.clone()
        return after

    @contextmanager
    def _in(self, mode: _Mode) -> Iterator[None]:
        self._mode = mode
        try:
            yield
        finally:
            self._mode = _Mode.CALL


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(*(tensor.contiguous().view(torch.uint8) for tensor in (one, other)))
