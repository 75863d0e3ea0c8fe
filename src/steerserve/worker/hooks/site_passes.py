"""What a hooked site does in a pass: it adds the delta of each row, makes the edits of the rows, and gives its value to
the observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from steerserve.worker.hooks.called_sites import PlaceName, SiteCalls, SiteWork
from steerserve.worker.hooks.edits import Masks
from steerserve.worker.hooks.parts import Span
from steerserve.worker.hooks.places import HookedSae, Place, name_of
from steerserve.worker.hooks.readings import Readings
from steerserve.worker.sae.sites import Called, Change, Moved, RowDeltas


@dataclass(frozen=True, slots=True)
class _Done:
    """What a site does to its value: the value before each SAE there adds to it, and what was read for conditions."""

    moved: Moved | None
    seen: Sequence[tuple[HookedSae, Tensor]]
    read: Sequence[Tensor]


class SitePasses:
    """Owner of what the hooked sites have in common in the pass that runs: the positions of its rows, and what
    conditions have read in it. `called` and `values` are those of passes on static buffers (`begin_static`); `values`
    is None in other passes."""

    def __init__(self) -> None:
        self.calls = SiteCalls()
        self.values: dict[int, Tensor] | None = None
        self.called: Mapping[PlaceName, Place] = {}
        self._tokens = 0
        self._spans: Sequence[tuple[int, int]] = ()
        self._readings = Readings()

    def begin(self, spans: Sequence[tuple[int, int]], tokens: int = 0) -> None:
        """Begin a pass. `spans` has, for each row, the position of its first token, and the number of its tokens.
        Observers get the last `tokens` tokens of the values, or all where it is 0."""
        self._tokens, self._spans, self._readings = tokens, spans, Readings()

    def begin_static(
        self, spans: Sequence[tuple[int, int]], called: Mapping[PlaceName, Place]
    ) -> dict[int, Tensor]:
        """Begin passes on static buffers over one token of each row. At the places of `called`, what the rows do is
        called in each pass. Gives the values of the other sites in the last pass, by the number of the SAE."""
        self.begin(spans)
        self.called = called
        self.values = {}
        return self.values

    def again(self) -> None:
        """The same pass on static buffers runs once more: nothing is read or called yet."""
        self.calls.begin()
        self._readings = Readings()

    def end(self) -> None:
        """The pass has ended."""
        self._readings, self.called, self.values = Readings(), {}, None

    def act(self, place: Place, value: Tensor) -> Moved | Called | None:
        """Called by the hook: give the site's value [rows, T, width] to the observers, and return what is done to the
        value."""
        if self.values is None:
            done = self._done(place, value, self._masks(place, value))
            self._tell(place, done)
            self.count(place)
            return done.moved
        name = name_of(place.site)
        if name not in self.called:
            return self._act_by_table(place, value)

        def made(tensor: Tensor, changed: Callable[[Change], Tensor]) -> Tensor:
            # at a replay, the rows are others than when the pass was recorded
            return self.calls.at(
                name, value, tensor, lambda: self._work(self.called[name], value, changed)
            )

        return Called(made)

    def count(self, place: Place) -> None:
        """Count a pass for each SAE of the place that steered in it."""
        for key, attachment in place.saes.items():
            edited = place.edits is not None and key in place.edits.written
            attachment.applied += attachment.delta is not None or edited

    # ------------------------------------------------------------- inside

    def _work(
        self, place: Place, value: Tensor, changed: Callable[[Change], Tensor]
    ) -> SiteWork[_Done]:
        """What is done at a called site now."""
        masks = self._masks(place, value)

        def run() -> tuple[Tensor, _Done]:
            done = self._done(place, value, masks)
            return changed(done.moved), done

        edits = place.edits
        assert edits is not None
        deltas = [one.delta for one in place.saes.values() if one.delta is not None]
        made_of = (*(mask for mask in masks if mask is not None), *deltas)
        held = edits.held if edits.is_fixed else None
        return SiteWork(run, partial(self._tell, place), made_of, held)

    def _done(self, place: Place, value: Tensor, masks: Masks) -> _Done:
        """What the SAEs and the rows do to the value of a site."""
        added = []
        seen: list[tuple[HookedSae, Tensor]] = []
        so_far = value
        for attachment in place.saes.values():
            seen.append((attachment, so_far))
            if attachment.delta is not None:
                added.append(attachment.delta)
                if len(place.saes) > 1:
                    so_far = so_far + attachment.delta
        change: Tensor | None = None
        read: Sequence[Tensor] = ()
        if place.edits is not None:
            span = self._span(value)
            change, read = place.edits.change(value, span, self._readings, masks)
        is_moved = added or change is not None
        return _Done(Moved(added, change) if is_moved else None, seen, read)

    def _tell(self, place: Place, done: _Done) -> None:
        """Give what a site did in a pass to the observers, and what was read to conditions at later sites."""
        if place.edits is not None:
            place.edits.note(done.read, self._readings)
        change = None if done.moved is None else done.moved.change
        for attachment, before in done.seen:
            moved = attachment.delta
            if attachment.catches and change is not None:
                moved = change if moved is None else change + moved
                moved = moved[:, -self._tokens :]
            for catch in attachment.catches:
                catch(before[:, -self._tokens :], moved)  # all tokens where the number is 0

    def _masks(self, place: Place, value: Tensor) -> Masks:
        """Where the edits of a site may act."""
        if place.edits is None:
            return ()
        return place.edits.masks(self._span(value), value.shape[1])

    def _span(self, value: Tensor) -> Span:
        """The positions of the rows of a pass in the value [rows, T, width] of a site."""
        width = value.shape[1]
        firsts, sizes = [], []
        for start, size in self._spans:
            # a row that is stepped alone may have its earlier positions in the value too
            firsts.append(start + size - width if self._tokens else start)
            sizes.append(width if self._tokens else size)
        return Span(firsts, sizes)

    def _act_by_table(self, place: Place, value: Tensor) -> Moved:
        """What a pass on static buffers adds. The observers take the value after the pass, because a replay calls no
        hook."""
        assert self.values is not None
        added: list[Tensor | RowDeltas] = []
        for attachment in place.saes.values():
            self.values[attachment.number] = value.clone()
            assert attachment.table is not None
            delta = attachment.table.edit(value)
            added.append(delta)
            if len(place.saes) > 1:
                value = torch.where(delta.is_added, value + delta.delta, value)
        return Moved(added, None)
