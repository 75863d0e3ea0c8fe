"""Patch sweeps: one text is read again and again, each time with some values of another text in the place of its own,
and a metric of the next token shows what each of these patches does (activation patching; Meng et al. 2022,
arXiv:2202.05262; Wang et al. 2022, arXiv:2211.00593)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from steerserve.errors import Refusal
from steerserve.rules.bounds import PATCH_CELLS
from steerserve.rules.form import Form
from steerserve.rules.saes import sites
from steerserve.rules.saes.sites import EMBED, RESID_POST, ModelSite

Direction = Literal["denoise", "noise"]
"""`denoise` puts values of the clean text into the corrupt one, `noise` the other way round."""
MetricKind = Literal["logit_difference", "logprob", "kl"]


class Metric(msgspec.Struct, frozen=True):
    """A number of the distribution of the next token: the logit of `target` less that of `against`, the log-probability
    of `target`, or by how many nats the distribution is off that of the clean text (KL divergence)."""

    kind: MetricKind
    target: int | None = None
    against: int | None = None


class Cell(msgspec.Struct, frozen=True):
    """A patch: the values of a site at some positions of the text that is patched; of one head, or of all."""

    site: str
    layer: int
    positions: tuple[int, ...]
    head: int | None = None

    @property
    def start(self) -> tuple[int, int]:
        """The layer that a patched run begins with, and the position from which on it differs from the run without."""
        return self.layer + (self.site == RESID_POST), min(self.positions)


class PatchedCell(Form, frozen=True, kw_only=True):
    """A patch and the metric with it. `normalised` is 0 where this is the metric of the corrupt text, and 1 where it is
    that of the clean one. It is null where the texts differ by no more than the noise."""

    site: str
    layer: int
    head: int | UnsetType = UNSET
    positions: tuple[int, ...]
    value: float
    normalised: float | None


class Patches(Form, frozen=True, kw_only=True):
    """A patch sweep. `clean` and `corrupt` are the metric of the two texts. `noise_floor` is the largest difference
    of the metric that a patch of a text into itself makes. `tokens` are those of the text that is patched."""

    model: str
    system_fingerprint: str
    direction: Direction
    metric: MetricKind
    clean: float
    corrupt: float
    noise_floor: float
    cells: list[PatchedCell]
    tokens: list[str]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep patches. `positions` are `each` position, `all` of them together, a list of positions, or of groups
    of positions. `pairs` has the position of the other text for each position of the patched one that has one."""

    sites: Sequence[str]
    layers: Sequence[int] | Literal["all"]
    positions: Sequence[int] | Sequence[Sequence[int]] | Literal["each", "all"]
    has_heads: bool
    pairs: Mapping[int, int]
    tokens: int

    @property
    def groups(self) -> int:
        """The number of groups of positions."""
        if self.positions == "each":
            return len(self.pairs)
        return 1 if self.positions == "all" else len(self.positions)


def paired(
    clean: int, corrupt: int, align: Sequence[tuple[int, int]] | None, direction: Direction
) -> dict[int, int]:
    """For each position of the patched text that has one, the position of the other text. `clean` and `corrupt` are the
    tokens of the texts.

    Raises:
        Refusal: INVALID_PARAMETER for texts of different lengths without `align`, for a position that a text does not
            have, and for one that is there twice.
    """
    if align is None:
        if clean != corrupt:
            why = (
                f"the corrupt text has {corrupt} tokens, and the clean text {clean}; texts of different lengths need "
                "`align`"
            )
            raise _refused("corrupt", why, clean_tokens=clean, corrupt_tokens=corrupt)
        return {at: at for at in range(clean)}
    found: dict[int, int] = {}
    for place, pair in enumerate(align):
        ends = []
        for which, (at, size, name) in enumerate(
            zip(pair, (clean, corrupt), ("clean", "corrupt"), strict=True)
        ):
            ends.append(_position(at, size, f"align[{place}][{which}]", f"the {name} text"))
        patched, other = ends[::-1] if direction == "denoise" else ends
        if patched in found:
            raise _refused(f"align[{place}]", f"the position {patched} is there twice")
        found[patched] = other
    return found


def check_sweep(sweep: Sweep, layers: int, known: Sequence[ModelSite], most: int) -> None:
    """Check a sweep for a model with so many layers, and with these sites.

    Raises:
        Refusal: INVALID_PARAMETER for a site, a layer or heads that the model does not have, and for more than `most`
            cells times tokens.
    """
    heads, at = sites.heads(known), sites.layers_of(known)
    _check_sites(sweep, sites.widths(known), heads)
    _check_layers(sweep, layers, at)
    places = sum(
        len(_layers(sweep, site, at)) * (heads[site] if sweep.has_heads else 1)
        for site in sweep.sites
    )
    groups = sweep.groups
    cells = places * groups
    counted = f"{places} places x {groups} groups of positions are {cells} cells"
    if cells > PATCH_CELLS:
        why = f"{counted}; at most {PATCH_CELLS}"
        raise _refused("positions", why, cells=cells, maximum=PATCH_CELLS)
    total = cells * sweep.tokens
    if total > most:
        why = f"{counted}, and {cells} cells x {sweep.tokens} tokens are {total} tokens; at most {most}"
        counts = {"cells": cells, "tokens": sweep.tokens, "total": total, "maximum": most}
        raise _refused("positions", why, **counts)


def cells_of(sweep: Sweep, known: Sequence[ModelSite]) -> list[Cell]:
    """The cells of a sweep, for a model with these sites: site by site, layer by layer, head by head, in the order of
    the positions.

    Raises:
        Refusal: INVALID_PARAMETER for a position that the text does not have, or that has no pair.
    """
    groups, heads, at = _groups(sweep), sites.heads(known), sites.layers_of(known)
    return [
        Cell(site, layer, group, head)
        for site in sweep.sites
        for layer, head, group in product(
            _layers(sweep, site, at),
            range(heads[site]) if sweep.has_heads else (None,),
            groups,
        )
    ]


def check_metric(metric: Metric, vocabulary: int) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a token that the model does not write, and for two equal ones.
    """
    for name, token in (("target_token", metric.target), ("against_token", metric.against)):
        if token is not None and token >= vocabulary:
            why = f"the token {token} is outside the vocabulary of {vocabulary} tokens"
            raise _refused(f"metric.{name}", why, token_id=token, vocabulary=vocabulary)
    if metric.target is not None and metric.target == metric.against:
        why = f"target and against are both the token {metric.target}; they must differ"
        raise _refused("metric.against_token", why, token_id=metric.target)


def noise_cells(cells: Sequence[Cell], repeats: int) -> list[Cell]:
    """The cells that are patched with the text's own values: so many, spread over the sweep."""
    return [cells[(2 * at + 1) * len(cells) // (2 * repeats)] for at in range(repeats)]


def described(
    cell: Cell, value: float, clean: float, corrupt: float, noise_floor: float
) -> PatchedCell:
    """A cell of the result."""
    span = clean - corrupt
    return PatchedCell(
        site=cell.site,
        layer=cell.layer,
        head=UNSET if cell.head is None else cell.head,
        positions=cell.positions,
        value=value,
        normalised=None if abs(span) <= noise_floor else (value - corrupt) / span + 0.0,  # no -0
    )


def _layers(sweep: Sweep, site: str, at: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """The layers at which a site is patched. `at` has the layers of each site of the model. The embedding is at layer 0
    alone."""
    return at[site] if site == EMBED or sweep.layers == "all" else sweep.layers


def _groups(sweep: Sweep) -> list[tuple[int, ...]]:
    """The positions of each cell."""
    wanted, known = sweep.positions, sorted(sweep.pairs)
    if wanted == "each":
        return [(at,) for at in known]
    if wanted == "all":
        return [tuple(known)]
    groups: list[tuple[int, ...]] = []
    for place, group in enumerate(cast("Sequence[int | Sequence[int]]", wanted)):
        where = f"positions[{place}]"
        if isinstance(group, int):
            groups.append((_known(sweep, group, where),))
            continue
        found = [_known(sweep, at, f"{where}[{i}]") for i, at in enumerate(group)]
        if len(set(found)) < len(found):
            raise _refused(where, "a position is there twice")
        groups.append(tuple(found))
    return groups


def _known(sweep: Sweep, at: int, where: str) -> int:
    found = _position(at, sweep.tokens, where, "the text that is patched")
    if found not in sweep.pairs:
        raise _refused(where, f"`align` has no pair for the position {found}")
    return found


def _position(at: int, size: int, where: str, what: str) -> int:
    """A position, of which negative ones count from the end."""
    if not -size <= at < size:
        raise _refused(where, f"{what} has {size} tokens, and no position {at}", tokens=size)
    return at % size


def _check_sites(sweep: Sweep, widths: Mapping[str, int], heads: Mapping[str, int]) -> None:
    for place, site in enumerate(sweep.sites):
        where = f"sites[{place}]"
        if site not in widths:
            why = f"the model has no site {site!r} that can be written; it has {', '.join(widths)}"
            raise _refused(where, why, sites=list(widths))
        if site in sweep.sites[:place]:
            raise _refused(where, f"{site} is there twice")
        if sweep.has_heads and not heads.get(site):
            having = ", ".join(name for name in widths if heads.get(name)) or "none"
            why = f"{site} has no heads; the sites with heads are: {having}"
            raise _refused("heads", why, site=site)


def _check_layers(sweep: Sweep, layers: int, at: Mapping[str, Sequence[int]]) -> None:
    if sweep.layers == "all":
        return
    for place, layer in enumerate(sweep.layers):
        if not 0 <= layer < layers:
            why = f"the model has the layers [0, {layers}), and no layer {layer}"
            raise _refused(f"layers[{place}]", why, layers=layers)
        if layer in sweep.layers[:place]:
            raise _refused(f"layers[{place}]", f"the layer {layer} is there twice")
        for site in sweep.sites:
            if site != EMBED and layer not in at[site]:
                has = ", ".join(map(str, at[site]))
                why = f"the model has no {site} at layer {layer}; it has it at {has}"
                raise _refused(f"layers[{place}]", why, site=site, layers=list(at[site]))


def _refused(where: str, why: str, **details: object) -> Refusal:
    return Refusal("INVALID_PARAMETER", f"{where}: {why}", param=where, **details)
