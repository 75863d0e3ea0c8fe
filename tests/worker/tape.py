"""A recorder of passes on the processor, in place of the graphs of a card: it notes each call of the tensor library
while a piece is recorded, and makes the same calls on the same tensors at each replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steerserve.worker.model.recording import PassPiece

_SYNCHRONISES = frozenset({"_local_scalar_dense", "item", "is_nonzero", "nonzero", "lift_fresh"})
"""Calls that a card refuses while it records, because the host would wait for a value, or send one."""


class Tape:
    """Makes pieces. `alter` may change a call that is noted, to let a replay go wrong."""

    def __init__(self, alter: Callable[[Any], Any] = lambda call: call) -> None:
        self.alter = alter
        self.pieces: list[TapedPiece] = []
        self.is_recording = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.is_recording = True
        try:
            yield
        finally:
            self.is_recording = False

    def apart(self) -> Tape:
        return Tape(self.alter)

    def piece(self) -> PassPiece:
        assert self.is_recording
        self.pieces.append(TapedPiece(self.alter))
        return self.pieces[-1]


class TapedPiece(TorchDispatchMode):
    """The calls of one piece, each with its arguments and the tensors that it returned."""

    def __init__(self, alter: Callable[[Any], Any]) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.replays = 0
        self._alter = alter

    def begin_recording(self) -> None:
        self.__enter__()

    def end(self) -> None:
        """A card computes nothing while it records, so the tensors hold values that nobody may read."""
        self.__exit__(None, None, None)
        for call, args, kwargs, returned in self.calls:
            read = {_place(tensor) for tensor in _tensors((args, kwargs))}
            for tensor in _tensors(returned):
                if _place(tensor) not in read and call is not None and not tensor.is_mkldnn:
                    tensor.fill_(torch.nan if tensor.is_floating_point() else 0)

    def replay(self) -> None:
        self.replays += 1
        for call, args, kwargs, returned in self.calls:
            new = call(*args, **kwargs)
            for old, value in zip(_tensors(returned), _tensors(new), strict=True):
                if _place(old) != _place(value):
                    old.copy_(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        chooses = name.startswith("index") and any(
            t.dtype == torch.bool for t in _tensors(args[1:2])
        )
        if name in _SYNCHRONISES or chooses:
            raise RuntimeError(f"{name} is not permitted when a stream is recorded")
        returned = func(*args, **(kwargs or {}))
        self.calls.append(self._alter((func, args, kwargs or {}, returned)))
        return returned


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _place(tensor: Tensor) -> int:
    """Where the values of a tensor are; another number for each tensor whose values have no address."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()
