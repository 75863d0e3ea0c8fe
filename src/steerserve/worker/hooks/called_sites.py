"""The sites of a decode pass at which rows do more than adding: they read, clamp or ablate.

What they do depends on conditions and positions, which change from token to token, so the graphs of a pass cannot hold
it. A recorded pass is cut at these sites, and the edits are called between two of its pieces. Most edits are many short
kernels on tensors that stay the same while the rows do. These are recorded too, as a piece of their own, once the same
rows have done the same a few times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import structlog
import torch
from torch import Tensor

from steerserve.worker.model.recording import PassPiece, PassRecorder
from steerserve.worker.model.transformer import described_error

log = structlog.get_logger(__name__)

Done = TypeVar("Done")

PlaceName = tuple[str, str]
"""The path of a module, and the name of the site there."""

Cut = Callable[[Callable[[Any], Tensor], Tensor], Tensor]
"""Ends a piece of a recorded pass. Gets what makes the tensor of a site at each replay, and a tensor of that shape.
Returns the tensor that the next piece reads."""


CALLED_FIRST = 3
"""The replays in which a site is called although it does the same. A recording takes as long as a few calls."""


class Unlike(Exception):
    """A replayed pass did not do what a plain pass does."""


class _Mode(Enum):
    CALL = "call"
    SKIP = "skip"
    NOTE = "note"
    CHECK = "check"


@dataclass(slots=True)
class RecordedSite:
    """What was done at a site with a value that lies at the same place at each replay. `key` stands for the tensors
    that were read beside it, `after` is the tensor of the site, and `done` is what readers and conditions get."""

    value: Tensor
    key: tuple[int, int]
    calls: int = 0
    piece: PassPiece | None = None
    after: Tensor | None = None
    done: Any = None


@dataclass(frozen=True, slots=True)
class SiteWork(Generic[Done]):
    """What the rows do at a site in one pass.

    Attributes:
        run: makes the tensor of the site, and what readers and conditions get.
        tell: gives readers and conditions their part; called once in each pass.
        key: stands for the tensors that `run` reads beside the value, and that may be others in the next pass.
        held: what was recorded of the same work in passes before, by the value; None where `run` must be called in each
            pass, because it reads more than tensors, or copies values to the host.
    """

    run: Callable[[], tuple[Tensor, Done]]
    tell: Callable[[Done], None]
    key: tuple[int, int] = (0, 0)
    held: dict[int, RecordedSite] | None = None


class SiteCalls:
    """Makes the tensors of the called sites of one pass. `cut` is there while a pass is recorded. `recorder` records
    what is done at sites, with memory of its own: its pieces run between those of a pass.

    `recordings` counts the recorded sites, and `replays` their replays.
    """

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.recorder: PassRecorder | None = None
        self.recordings = 0
        self.replays = 0
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

    def forget_made(self) -> None:
        """Forget which sites were made."""
        self.made.clear()

    def at(
        self,
        name: PlaceName,
        value: Tensor,
        tensor: Tensor,
        make: Callable[[], SiteWork[Done]],
    ) -> Tensor:
        """The new tensor of a site: what the work from `make` does with its `value` now and, where the pass is
        recorded, at each replay. `tensor` is the tensor of the site before."""
        if self.cut is None:
            return self._made(name, value, tensor, make)
        return self.cut(lambda _: self._made(name, value, tensor, make, is_static=True), tensor)

    def _made(
        self,
        name: PlaceName,
        value: Tensor,
        tensor: Tensor,
        make: Callable[[], SiteWork[Done]],
        *,
        is_static: bool = False,
    ) -> Tensor:
        """`is_static`: the value lies at the same place at each replay."""
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
        work = make()
        recorder = self.recorder if is_static else None
        if recorder is not None and work.held is not None:
            after, done = self._recorded(recorder, value, work, work.held)
        else:
            after, done = work.run()
        work.tell(done)
        if self._mode is _Mode.NOTE:
            self._noted[name] = value.clone(), after.clone()
        return after

    def _recorded(
        self,
        recorder: PassRecorder,
        value: Tensor,
        work: SiteWork[Done],
        held: dict[int, RecordedSite],
    ) -> tuple[Tensor, Done]:
        """What the work gives, by a replay where it was recorded."""
        site = held.get(id(value))
        if site is None or site.value is not value or site.key != work.key:
            site = held[id(value)] = RecordedSite(value, work.key)
        if site.piece is not None:
            site.piece.replay()
            self.replays += 1
            assert site.after is not None
            return site.after, site.done
        after, done = work.run()
        site.calls += 1
        if site.calls > CALLED_FIRST:
            self._record(recorder, site, work, after)
        return after, done

    def _record(
        self, recorder: PassRecorder, site: RecordedSite, work: SiteWork[Done], after: Tensor
    ) -> None:
        """Record the work, whose call has just given `after`. Where the replay has other bits, or the work cannot be
        recorded, sites are called from now on."""
        try:
            with recorder.recording():
                piece = recorder.piece()
                piece.begin_recording()
                try:
                    made, done = work.run()
                except BaseException:
                    with suppress(Exception):
                        piece.end()
                    raise
                piece.end()
            piece.replay()
            if not is_same(made, after):
                raise Unlike("a recorded site did not give the bits of a called one")
        except Exception as error:
            why = str(error) if isinstance(error, Unlike) else described_error(error)
            log.warning("sites_not_recorded", why=why)
            self.recorder = None
            return
        site.piece, site.after, site.done = piece, made, done
        self.recordings += 1

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
