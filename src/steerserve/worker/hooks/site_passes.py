"""What a hooked site does in a pass: it adds the delta of each row, makes the edits of the rows, and gives its value to
the parts that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from steerserve.worker.hooks.called_sites import SiteCalls, SiteWork
from steerserve.worker.hooks.edits import Masks
from steerserve.worker.hooks.parts import Span
from steerserve.worker.hooks.places import Catch, HookedSae, Place
from steerserve.worker.hooks.readings import Readings
from steerserve.worker.hooks.site_plans import NO_PASS, PassPlan, SitePlan
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.sae.sites import Called, Change, Moved, RowDeltas, Told


@dataclass(frozen=True, slots=True)
class _Done:
    """What a site does to its value: the value before each SAE there adds to it, and what was read for conditions."""

    moved: Moved | None
    seen: Sequence[tuple[str, HookedSae, Tensor]]
    read: Sequence[Tensor]


class SitePasses:
    """Owner of the plan of the pass that runs, and of what conditions have read in it. `calls` is what is called at
    sites of passes on static buffers."""

    def __init__(self) -> None:
        self.calls = SiteCalls()
        self._plan = NO_PASS
        self._values: dict[int, Tensor] | None = None
        self._readings: Readings = {}
        self._spans: dict[int, Span] = {}

    @contextmanager
    def steered(self, plan: PassPlan, values: dict[int, Tensor] | None = None) -> Iterator[None]:
        """While open, a forward pass is steered row by row. With `values` passes on static buffers are: the tables
        steer their rows, and recorded passes read the tables at each replay. At the sites of the plan, what the rows do
        is called. `values` gets the values [rows, 1, width] of the other sites in the last pass, by the number of the
        SAE."""
        with ExitStack() as undo:
            undo.callback(self._end)
            passing = [one.place for one in plan.sites.values() if one.place.handle is None]
            watched = [
                Place(caught.site)
                for name, caught in plan.catches.sites.items()
                if name not in plan.sites
            ]
            for place in passing:
                undo.callback(place.site.hook(partial(self.act, place)).remove)
            for place in watched:
                undo.callback(place.site.watch(partial(self.act, place)).remove)
            self._plan, self._values, self._readings, self._spans = plan, values, {}, {}
            yield

    def act(self, place: Place, value: Tensor) -> Moved | Called | Told | None:
        """Called by the hook: give the site's value [rows, T, width] to what reads it, and return what is done to the
        value."""
        if self._values is not None:
            is_called = place.name in self._plan.sites
            return self._called(place, value) if is_called else self._by_table(place, value)
        caught = self._plan.catches.sites.get(place.name)
        if caught is None:
            return self._moved(place, value)
        self._give(caught.before, value)
        moved = self._moved(place, value)
        return Told(moved, partial(self._give, caught.after)) if caught.after else moved

    def _give(self, catches: Sequence[Catch], value: Tensor) -> None:
        for catch in catches:
            catch(value[:, -self._plan.tokens :], None)  # all tokens where the number is 0

    def _moved(self, place: Place, value: Tensor) -> Moved | None:
        """What is done to the value of a site in a pass that is called."""
        site = self._plan.sites.get(place.name)
        if site is None or not (site.deltas or site.edits or self._plan.catches.saes):
            return None
        done = self._done(site, value, self._masks(site, value))
        self._tell(site, done)
        _count(site)
        return done.moved

    # ------------------------------------------------------------- passes on static buffers

    def begin_pass(self) -> None:
        """Count from 0 what the coming pass by the tables does."""
        for _, attachment in self._plan.by_table:
            _table(attachment).steered.zero_()
        self.calls.forget_made()
        self._readings = {}

    def has_steered(self) -> bool:
        """Whether one pass since `begin_pass` has steered all rows that it had to steer, at all sites."""
        if sorted(self.calls.made) != sorted(self._plan.sites):
            return False
        tables = [_table(attachment) for _, attachment in self._plan.by_table]
        if not tables:
            return True
        counts = torch.stack([table.steered for table in tables]).tolist()
        return bool(counts == [table.expected for table in tables])

    def give_values(self, values: Mapping[int, Tensor]) -> None:
        """Give the values of the sites in a pass by the tables to the functions that take them, and count the pass. At
        the called sites the functions had them within the pass."""
        handed = [
            (attachment.number, _table(attachment).deltas())
            for _, attachment in self._plan.by_table
            if attachment.number in self._plan.catches.saes
        ]
        for number, delta in handed:
            for catch in self._plan.catches.saes[number]:
                catch(values[number], delta)
        for _, attachment in self._plan.by_table:
            attachment.applied += _table(attachment).expected > 0
        for site in self._plan.sites.values():
            _count(site)

    def _by_table(self, place: Place, value: Tensor) -> Moved:
        """What a pass on static buffers adds. Readers take the value after the pass, because a replay calls no
        hook."""
        assert self._values is not None
        added: list[Tensor | RowDeltas] = []
        for attachment in place.saes.values():
            self._values[attachment.number] = value.clone()
            delta = _table(attachment).edit(value)
            added.append(delta)
            if len(place.saes) > 1:
                value = torch.where(delta.is_added, value + delta.delta, value)
        return Moved(added, None)

    def _called(self, place: Place, value: Tensor) -> Called:
        def make_value(tensor: Tensor, changed: Callable[[Change], Tensor]) -> Tensor:
            # at a replay, the rows are others than when the pass was recorded
            return self.calls.at(
                place.name, value, tensor, lambda: self._work(place, value, changed)
            )

        return Called(make_value)

    def _work(
        self, place: Place, value: Tensor, changed: Callable[[Change], Tensor]
    ) -> SiteWork[_Done]:
        """What is done at a called site now."""
        site = self._plan.sites[place.name]
        masks = self._masks(site, value)

        def run() -> tuple[Tensor, _Done]:
            done = self._done(site, value, masks)
            return changed(done.moved), done

        edits = site.edits
        assert edits is not None
        held = edits.held if edits.is_fixed else None
        return SiteWork(run, partial(self._tell, site), (site.key, edits.masks_key), held)

    # ------------------------------------------------------------- inside

    def _end(self) -> None:
        """The pass has ended."""
        self._plan, self._values, self._readings, self._spans = NO_PASS, None, {}, {}

    def _done(self, site: SitePlan, value: Tensor, masks: Masks) -> _Done:
        """What the SAEs and the rows do to the value of a site."""
        added = []
        seen: list[tuple[str, HookedSae, Tensor]] = []
        so_far, saes = value, site.place.saes
        for key, attachment in saes.items():
            seen.append((key, attachment, so_far))
            if key in site.deltas:
                added.append(site.deltas[key])
                if len(saes) > 1:
                    so_far = so_far + site.deltas[key]
        moved = Moved(added, None) if added else None
        read: Sequence[Tensor] = ()
        if site.edits is not None:
            span = self._span(value)
            edited, read = site.edits.change(value, span, self._readings, masks)
            if edited is not None:
                moved = replace(edited, added=added)
        return _Done(moved, seen, read)

    def _tell(self, site: SitePlan, done: _Done) -> None:
        """Give what a site did in a pass to what reads it, and what was read to conditions at later sites."""
        if site.edits is not None:
            site.edits.note(done.read, self._readings)
        tokens = self._plan.tokens
        for key, attachment, before in done.seen:
            catches = self._plan.catches.saes.get(attachment.number, ())
            moved = site.deltas.get(key)
            edited = done.moved.of_all_rows(len(before)) if catches and done.moved else None
            if edited is not None and edited.change is not None:
                moved = edited.change if moved is None else edited.change + moved
                if edited.replaced is not None:
                    moved = moved + edited.replaced.change_of(before)
                moved = moved[:, -tokens:]
            for catch in catches:
                catch(before[:, -tokens:], moved)  # all tokens where the number is 0

    def _masks(self, site: SitePlan, value: Tensor) -> Masks:
        """Where the edits of a site may act."""
        return () if site.edits is None else site.edits.masks(self._span(value), value.shape[1])

    def _span(self, value: Tensor) -> Span:
        """The positions of the rows of a pass in the value [rows, T, width] of a site."""
        width, tokens = value.shape[1], self._plan.tokens
        if width not in self._spans:
            # a row that is stepped alone may have its earlier positions in the value too
            firsts = [start + size - width if tokens else start for start, size in self._plan.spans]
            sizes = [width if tokens else size for _, size in self._plan.spans]
            self._spans[width] = Span(firsts, sizes)
        return self._spans[width]


def _count(site: SitePlan) -> None:
    """Count a pass for each SAE of the site that steered in it."""
    for key, attachment in site.place.saes.items():
        attachment.applied += site.steers(key)


def _table(attachment: HookedSae) -> DirectionTable:
    assert attachment.table is not None
    return attachment.table
