"""The attached SAEs and the hooked sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Handle, Site

Catch = Callable[[Tensor, Tensor | None], None]
"""A function that is called within a pass with a site's value [rows, T, width], before the SAE's own steering is added,
and with the delta of that steering ([rows or 1, T or 1, width]; None where nothing is added). The function copies the
parts that it keeps. It raises nothing, because the pass belongs to other rows too."""


@dataclass(slots=True)
class SiteCatches:
    """The functions that take the value of a site: before anything is done to it, and afterwards. The delta that they
    get is None."""

    site: Site
    before: list[Catch] = field(default_factory=list)
    after: list[Catch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Catches:
    """What takes values in a pass: by the numbers of attached SAEs, and by the names of sites."""

    saes: Mapping[int, Sequence[Catch]] = field(default_factory=dict)
    sites: Mapping[PlaceName, SiteCatches] = field(default_factory=dict)


NO_CATCHES = Catches()


@dataclass(slots=True)
class HookedSae:
    """One SAE at one site; no other attached SAE ever has the same `number`.

    `reader` is the SAE on the site's device, once activations are read there. `applied` counts the passes in which it
    has steered. `table` steers the passes on static buffers, once there was one.
    """

    sae: Sae
    site: Site
    device: torch.device
    number: int
    reader: Sae | None = None
    applied: int = 0
    table: DirectionTable | None = None


@dataclass(slots=True)
class Place:
    """One hooked site, with the SAEs there by key, in the order in which they steer."""

    site: Site
    saes: dict[str, HookedSae] = field(default_factory=dict)
    handle: Handle | None = None
    name: PlaceName = field(init=False)

    def __post_init__(self) -> None:
        self.name = name_of(self.site)


def name_of(site: Site) -> PlaceName:
    """The name of the place at a site."""
    return site.path, site.name
