"""The conditions of the edits of a site, decided together: one comparison for all readings, however many conditions the
edits of a row have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from steerserve.rules.steering.edits import AllOf, Condition, When
from steerserve.worker.hooks.parts import Part, Reads, Span
from steerserve.worker.hooks.readings import Readings
from steerserve.worker.rows.steering import needs_record

Placed = tuple[int, Reads]
"""A row among those of the site, and what is read of it."""


class Gates:
    """Where the conditions of edits hold. `conditions` has those of each edit with the place of its row among `parts`.

    The leaves are the conditions without `any` and `all`. Those that need earlier positions (`recorded`) are decided by
    their rows; all others are readings, which are compared at once. Inner nodes follow level by level, where `all` is
    the opposite of any opposite. `here` has the places of readings of this site among all of its readings in their
    order; a site `is_fixed` where it needs no others.
    """

    def __init__(
        self,
        conditions: Sequence[tuple[int, When | None]],
        parts: Sequence[Part],
        here: Mapping[Placed, int],
        device: torch.device,
    ) -> None:
        self._parts = parts
        self._device = device
        self._indices: dict[tuple[int, ...], Tensor] = {}
        nodes = [
            node for place, when in conditions if when is not None for node in _nodes(place, when)
        ]
        found = [(place, one) for place, one in nodes if isinstance(one, Condition)]
        leaves = list(dict.fromkeys(found))
        plain = [leaf for leaf in leaves if not needs_record(leaf[1])]
        self._recorded = [leaf for leaf in leaves if needs_record(leaf[1])]
        named = [(place, one.reads) for place, one in plain]
        self._elsewhere = list(dict.fromkeys(each for each in named if each not in here))
        at = dict(here) | {each: len(here) + i for i, each in enumerate(self._elsewhere)}
        self._index = torch.tensor([at[each] for each in named], dtype=torch.long, device=device)
        above = [math.inf if one.above is None else one.above for _, one in plain]
        below = [-math.inf if one.below is None else one.below for _, one in plain]
        bounds = torch.tensor([above, below], dtype=torch.float32, device=device)[..., None]
        self._above, self._below = bounds.unbind()
        self.is_fixed = not (self._recorded or self._elsewhere)
        numbers: dict[tuple[int, When], int] = {}
        numbers |= {leaf: i for i, leaf in enumerate([*plain, *self._recorded])}
        self._always = len(numbers)
        self._levels: list[_Level] = []
        self._places = self._arranged(conditions, numbers)

    def _arranged(
        self,
        conditions: Sequence[tuple[int, When | None]],
        numbers: dict[tuple[int, When], int],
    ) -> Tensor:
        """Number all nodes, the innermost first, and return the numbers of the edits."""
        wanted = {(place, when) for place, when in conditions if when is not None}
        inner = [node for node in _ordered(wanted) if node not in numbers]
        count = self._always + 1
        while inner:
            ready = [n for n in inner if all((n[0], one) in numbers for one in _inner(n[1]))]
            self._levels.append(_Level(ready, numbers, self._device))
            for node in ready:
                numbers[node] = count
                count += 1
            inner = [node for node in inner if node not in numbers]
        places = [
            self._always if when is None else numbers[place, when] for place, when in conditions
        ]
        return torch.tensor(places, dtype=torch.long, device=self._device)

    def hold(self, found: Sequence[Tensor], readings: Readings, span: Span, width: int) -> Tensor:
        """Where the condition of each edit holds, bool [edits, T]; an edit without one holds everywhere. `found` are
        the readings of the site, each [n, T]."""
        others = self._others(readings)
        decided = [torch.ones((1, width), dtype=torch.bool, device=self._device)]
        if self._recorded:
            told = [self._told(place, one, span, width) for place, one in self._recorded]
            decided.insert(0, torch.tensor(told, device=self._device))
        if len(self._index):
            together = [*found, *others]
            read = together[0] if len(together) == 1 else torch.cat(together)
            read = read[self._index]
            decided.insert(0, (read > self._above) | (read < self._below))
        holds = torch.cat(decided)
        for level in self._levels:
            holds = torch.cat([holds, level.hold(holds)])
        return holds[self._places]

    def _others(self, readings: Readings) -> list[Tensor]:
        """What was read at other sites, [n, T] in the order of `elsewhere`, with one look at each site."""
        sources: dict[int, tuple[Tensor, list[int]]] = {}
        turns = []
        for place, reads in self._elsewhere:
            together, at = readings[self._parts[place].row, reads]
            _, places = sources.setdefault(id(together), (together, []))
            turns.append((list(sources).index(id(together)), len(places)))
            places.append(at)
        if not sources:
            return []
        begins = [0]
        for _, places in sources.values():
            begins.append(begins[-1] + len(places))
        read = torch.cat(
            [together[self._at(places)].to(self._device) for together, places in sources.values()]
        )
        return [read[self._at([begins[source] + turn for source, turn in turns])]]

    def _at(self, places: Sequence[int]) -> Tensor:
        """Places as an index, which is kept: the same ones are asked for in every pass."""
        name = tuple(places)
        if name not in self._indices:
            self._indices[name] = torch.tensor(name, device=self._device)
        return self._indices[name]

    def _told(self, place: int, condition: Condition, span: Span, width: int) -> list[bool]:
        part = self._parts[place]
        first = span.first[part.row]
        return part.steering.held(condition, first, first + width)


class _Level:
    """Inner nodes whose conditions are all known."""

    def __init__(
        self,
        nodes: Sequence[tuple[int, When]],
        numbers: Mapping[tuple[int, When], int],
        device: torch.device,
    ) -> None:
        pairs = [
            (numbers[place, one], parent, isinstance(when, AllOf))
            for parent, (place, when) in enumerate(nodes)
            for one in _inner(when)
        ]
        self._count = len(nodes)
        self._children = torch.tensor([child for child, _, _ in pairs], device=device)
        self._parents = torch.tensor([parent for _, parent, _ in pairs], device=device)
        self._is_all = torch.tensor([[is_all] for _, _, is_all in pairs], device=device)
        are_all = [[isinstance(when, AllOf)] for _, when in nodes]
        self._are_all = torch.tensor(are_all, device=device)

    def hold(self, holds: Tensor) -> Tensor:
        """Where the nodes hold, bool [nodes, T], by the nodes that are known."""
        each = (holds[self._children] ^ self._is_all).to(torch.int32)
        counts = each.new_zeros((self._count, each.shape[1])).index_add_(0, self._parents, each)
        return (counts > 0) ^ self._are_all


def _inner(when: When) -> Sequence[When]:
    return () if isinstance(when, Condition) else when.conditions


def _nodes(place: int, when: When) -> list[tuple[int, When]]:
    """A condition and all that it is made of."""
    return [(place, when), *(node for one in _inner(when) for node in _nodes(place, one))]


def _ordered(wanted: set[tuple[int, When]]) -> list[tuple[int, When]]:
    """All inner nodes of these conditions, once each."""
    nodes = [node for place, when in wanted for node in _nodes(place, when)]
    return [node for node in dict.fromkeys(nodes) if _inner(node[1])]
