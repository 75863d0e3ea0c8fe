"""The attached SAEs and the hooked sites, each with what the coming pass does there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steerserve.messages import Plan
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.edits import SiteEdits
from steerserve.worker.hooks.table import DirectionTable
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Handle, Site

Catch = Callable[[Tensor, Tensor | None], None]
"""A function that is called within a pass with a site's value [rows, T, width], before the SAE's own steering is added,
and with the delta of that steering ([rows or 1, T or 1, width]; None where nothing is added). The function copies the
parts that it keeps. It raises nothing, because the pass belongs to other rows too."""


@dataclass(slots=True)
class HookedSae:
    """One SAE at one site; no other attached SAE ever has the same `number`.

    `delta` [rows or 1, 1, width] is added by the coming pass; None adds nothing. `catches` take the site's value in the
    coming pass. `reader` is the SAE on the site's device, once activations are read there. `made` holds the last delta,
    after the version and the plans from which it was made.

    `table` steers the passes on static buffers, once there was one.
    """

    sae: Sae
    site: Site
    device: torch.device
    number: int
    reader: Sae | None = None
    delta: Tensor | None = None
    made: tuple[int, Sequence[Plan], Tensor | None] = (-1, (), None)
    catches: Sequence[Catch] = ()
    applied: int = 0
    table: DirectionTable | None = None


@dataclass(slots=True)
class Place:
    """One hooked site: the SAEs there by key, in the order in which they steer, and what the rows of the coming pass do
    there beside adding."""

    site: Site
    saes: dict[str, HookedSae] = field(default_factory=dict)
    handle: Handle | None = None
    edits: SiteEdits | None = None


def name_of(site: Site) -> PlaceName:
    """The name of the place at a site."""
    return site.path, site.name
