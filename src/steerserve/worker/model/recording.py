"""A decode pass that is recorded once and then replayed: on a card, without any Python of the model.

Only what lies between two calls of attention is recorded. Attention itself, and the writing of keys and values, are
called at each replay. A recorded pass therefore depends on the number of its rows alone, and not on the lengths, the
places or the memory of the rows in the cache. It is cut in the same way at the sites where rows do more than adding.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from steerserve.worker.model.attention import Between, PartedAttention
from steerserve.worker.model.kv import KvCache


class PassPiece(Protocol):
    """A part of a pass. The tensors that the calls between `begin_recording` and `end` make are the same tensors at
    each replay, with other values. A first recording does not compute these values."""

    def begin_recording(self) -> None: ...

    def end(self) -> None: ...

    def replay(self) -> None: ...


class PassRecorder(Protocol):
    """Makes the pieces of one model. While `recording` is open, pieces may be recorded. The pieces of one recorder are
    replayed one pass after the other; those of a recorder `apart` may be replayed between them."""

    def recording(self) -> AbstractContextManager[None]: ...

    def piece(self) -> PassPiece: ...

    def apart(self) -> PassRecorder: ...


@dataclass(slots=True)
class RecordedPass:
    """The pieces of a pass. After each but the last one attention is called, or the rows' edits at a site. The result
    is copied to the tensor that the next piece reads. The last piece leaves `logits` [rows, vocabulary]."""

    pieces: list[PassPiece] = field(default_factory=list)
    between: list[tuple[Between, Tensor]] = field(default_factory=list)
    logits: Tensor | None = None

    def replay(self, cache: KvCache) -> Tensor:
        """The logits for the values that are in the static buffers now."""
        assert self.logits is not None
        for piece, (call, out) in zip(self.pieces, self.between, strict=False):
            piece.replay()
            cache.beat()
            out.copy_(call(cache))
        self.pieces[-1].replay()
        return self.logits


class CutsPasses(Protocol):
    """What is called between two pieces. `cut` gets the call, and a tensor of the shape of its result where that is
    known without the call."""

    cut: Callable[[Between, Tensor], Tensor] | None


def record(
    attention: PartedAttention,
    sites: CutsPasses,
    cache: KvCache,
    recorder: PassRecorder,
    forward: Callable[[], Tensor],
) -> RecordedPass:
    """Record the pass that `forward` runs. `forward` is called once before, so that libraries are set up. The keys and
    values that a recording writes into the cache at the positions of the pass are arbitrary, and the next pass at these
    positions overwrites them."""
    made = RecordedPass()

    def begin_piece() -> None:
        piece = recorder.piece()
        piece.begin_recording()
        made.pieces.append(piece)

    def cut(call: Between, like: Tensor | None = None) -> Tensor:
        made.pieces[-1].end()
        out = (call(cache) if like is None else like).clone()
        made.between.append((call, out))
        begin_piece()
        return out

    with recorder.recording():
        forward()
        try:
            attention.cut = sites.cut = cut
            cache.is_recorded = True
            begin_piece()
            made.logits = forward()
        except BaseException:
            with suppress(Exception):
                made.pieces[-1].end()
            raise
        finally:
            attention.cut = sites.cut = None
            cache.is_recorded, cache.new = False, ()
        made.pieces[-1].end()
    return made


class CardRecorder:
    """Records CUDA graphs, which all share one pool of memory. They are replayed one after the other, and all tensors
    that outlive a replay are held, so no graph writes into what another one left."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graphs: WeakSet[_CardGraph] = WeakSet()
        self._pool: torch.cuda._POOL_HANDLE | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Graphs are recorded on a stream of their own, because the default stream cannot be recorded. No garbage is
        collected meanwhile: a tensor that is freed while a graph is recorded would end the recording."""
        is_collected = gc.isenabled()
        gc.disable()
        try:
            torch.cuda.synchronize(self._device)
            with torch.cuda.stream(self._stream):
                yield
            torch.cuda.synchronize(self._device)
        finally:
            if is_collected:
                gc.enable()

    def apart(self) -> CardRecorder:
        return CardRecorder(self._device)

    def piece(self) -> PassPiece:
        if (
            not self._graphs
        ):  # the library gives up a pool with the last graph in it, and then refuses its handle
            self._pool = torch.cuda.graph_pool_handle()
        graph = _CardGraph(self._pool)
        self._graphs.add(graph)
        return graph


class _CardGraph:
    """One CUDA graph."""

    def __init__(self, pool: torch.cuda._POOL_HANDLE | None) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def begin_recording(self) -> None:
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()
