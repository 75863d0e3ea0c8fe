"""Whether a model fits the free memory, and on which devices: one card, several cards, or the host.

Each device has to hold its part of the weights, the KV cache of its layers at the least context, working memory, the
memory that loading takes for a moment, and, on a card, the card's context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from steerserve.errors import Refusal
from steerserve.rules.form import Form
from steerserve.rules.residency.memory_needs import Device, Needs, Share
from steerserve.rules.residency.placement import GpuChoice, GpuRequest
from steerserve.rules.units import MIB

PASSES_MAXIMUM = 4
"""The most passes that move layers between cards. If the parts do not fit after them, the split counts as
impossible."""


class ModelPlacement(Form, frozen=True, kw_only=True):
    """Where the resident model is. `required_mb` and `capacity_mb` are the MiB that it needs and that were free at its
    load. `devices` are `cuda:<index>` or `cpu`. `memory_by_device_mb` was measured; the planned MiB and the budget of
    each device are there for a model that is split over several cards."""

    mode: str
    reason: str
    requested: str | None
    required_mb: int
    capacity_mb: int
    devices: list[str]
    gpu_indices: list[int]
    memory_by_device_mb: dict[str, int]
    planned_mb_by_device: dict[str, int] | UnsetType = UNSET
    budget_mb_by_device: dict[str, int] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Where a model goes. `layer_devices` has the device of each layer, or one entry if there is one device."""

    mode: str
    reason: str
    requested: str | int | None
    shares: tuple[Share, ...]
    layer_devices: tuple[str, ...]
    passes: int = 0

    @property
    def devices(self) -> list[str]:
        return [share.device.label for share in self.shares]

    @property
    def gpu_indices(self) -> list[int]:
        return [s.device.index for s in self.shares if s.device.index is not None]

    @property
    def planned_mb_by_device(self) -> dict[str, int]:
        """MiB of weights by device."""
        return {share.device.label: share.weights_mb for share in self.shares}

    @property
    def working_mb(self) -> int:
        return max(share.working_mb for share in self.shares)

    def placement(self, memory_by_device_mb: dict[str, int]) -> ModelPlacement:
        """The placement of a resident model as records show it. `memory_by_device_mb` is what the engine measured."""
        is_split = self.mode == "shard"
        return ModelPlacement(
            mode=self.mode,
            reason=self.reason,
            requested=None if self.requested is None else str(self.requested),
            required_mb=sum(share.needed_mb for share in self.shares),
            capacity_mb=sum(share.device.free_mb for share in self.shares),
            devices=self.devices,
            gpu_indices=self.gpu_indices,
            memory_by_device_mb=memory_by_device_mb,
            planned_mb_by_device=self.planned_mb_by_device if is_split else UNSET,
            budget_mb_by_device={
                s.device.label: s.device.free_mb - (s.needed_mb - s.weights_mb) for s in self.shares
            }
            if is_split
            else UNSET,
        )


class _NoRoom(Exception):
    """The model does not fit. `shares` has what each device would have to hold; `passes` and `lowered` tell how layers
    were moved."""

    def __init__(
        self, shares: Sequence[Share], passes: int = 0, lowered: dict[str, int] | None = None
    ) -> None:
        super().__init__()
        self.shares = shares
        self.passes = passes
        self.lowered = lowered or {}


def plan(needs: Needs, devices: Sequence[Device], wanted: GpuRequest) -> PlacementPlan:
    """Place a model on the devices that it may use.

    (1) With one device, the model fits there or is refused. (2) With "all", every card gets a part, or the load is
    refused. (3) Otherwise the model goes to the card with most free memory if it fits there. (4) Else it is split over
    as few cards as can hold it, beginning with the card that has most free memory.

    Raises:
        Refusal: INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED.
    """
    return _planned(needs, devices, lambda places: _place(needs, places, wanted))


def plan_in(
    needs: Needs, devices: Sequence[Device], wanted: GpuRequest, proportions: Sequence[float]
) -> PlacementPlan:
    """Place a model on the devices in the operator's own proportions.

    Raises:
        Refusal: INSUFFICIENT_MEMORY.
    """
    return _planned(needs, devices, lambda places: _place_in(needs, places, wanted, proportions))


Place = Callable[[Sequence[Device]], PlacementPlan]


def _planned(needs: Needs, devices: Sequence[Device], place: Place) -> PlacementPlan:
    """The plan, or a refusal that tells whether the model could ever fit this machine."""
    held = needs.kv_tokens_named
    if held is not None and held < needs.min_context:
        shares = [_whole(needs, device) for device in devices]
        why = (
            f"the KV cache of {_mib(needs.kv_named)} MiB (KV_CACHE_MB) holds {held} tokens of this model; "
            f"at least {needs.min_context} are needed (TRANSFORMERS_MIN_CONTEXT)"
        )
        raise _insufficient(needs, _NoRoom(shares), why, can_ever_fit=False)
    try:
        return place(devices)
    except _NoRoom as lack:
        can_ever_fit = _fits(place, [device.emptied for device in devices])
        raise _insufficient(needs, lack, _lacking(needs, lack), can_ever_fit=can_ever_fit) from None


def _fits(place: Place, devices: Sequence[Device]) -> bool:
    try:
        place(devices)
    except _NoRoom:
        return False
    except Refusal:  # the cards can hold the model, but not in the way that the request asked for
        return True
    return True


def _place(needs: Needs, devices: Sequence[Device], wanted: GpuRequest) -> PlacementPlan:
    """The plan by the four rules of `plan`; a lack of memory is raised as `_NoRoom`.

    Raises:
        Refusal: SPLIT_NOT_HONOURED.
    """
    ranked = sorted(devices, key=lambda d: -(d.free_mb - d.context_mb))
    if len(devices) == 1 or not needs.layers:
        return _single(needs, ranked[0], wanted)
    if wanted.choice is GpuChoice.ALL:
        return _shard(needs, devices, wanted, "all_cards_requested")
    if _whole(needs, ranked[0]).fits:
        return _single(needs, ranked[0], wanted)
    for count in range(2, len(devices) + 1):
        chosen = sorted(ranked[:count], key=devices.index)
        shares, _, _ = _split(needs, chosen)
        if all(share.fits for share in shares):
            return _shard(needs, chosen, wanted, "no_card_holds_it_alone")
    return _shard(needs, devices, wanted, "no_card_holds_it_alone")


def _place_in(
    needs: Needs, devices: Sequence[Device], wanted: GpuRequest, proportions: Sequence[float]
) -> PlacementPlan:
    shares = _shares(needs, devices, _counts(len(needs.layers), proportions))
    if not all(share.fits for share in shares):
        raise _NoRoom(shares)
    return _plan_of(shares, wanted, "configured_proportions")


def _single(needs: Needs, device: Device, wanted: GpuRequest) -> PlacementPlan:
    share = _whole(needs, device)
    if not share.fits:
        raise _NoRoom([share])
    reason = "most_free_card_fits"
    if device.index is None:
        reason = "host_memory"
    elif wanted.choice is GpuChoice.CARD:
        reason = "requested_card"
    return PlacementPlan("single", reason, wanted.named, (share,), (device.label,))


def _shard(
    needs: Needs, devices: Sequence[Device], wanted: GpuRequest, reason: str
) -> PlacementPlan:
    shares, passes, lowered = _split(needs, devices)
    if not all(share.fits for share in shares):
        raise _NoRoom(shares, passes, lowered)
    unused = [share.device.label for share in shares if not share.layers]
    if unused and wanted.choice is GpuChoice.ALL:
        raise Refusal(
            "SPLIT_NOT_HONOURED",
            f"{', '.join(unused)} would get nothing of the model; name one card, or leave the choice open",
            unused_devices=unused,
            mapped_mb_by_device={s.device.label: s.weights_mb for s in shares},
        )
    return _plan_of(shares, wanted, reason, passes)


def _plan_of(
    shares: Sequence[Share], wanted: GpuRequest, reason: str, passes: int = 0
) -> PlacementPlan:
    """The plan with the devices that get layers."""
    used = tuple(share for share in shares if share.layers)
    if len(used) == 1:
        return PlacementPlan("single", reason, wanted.named, used, (used[0].device.label,), passes)
    labels = tuple(share.device.label for share in used for _ in range(share.layers))
    return PlacementPlan("shard", reason, wanted.named, used, labels, passes)


def _lacking(needs: Needs, lack: _NoRoom) -> str:
    """The sentence that names the devices without enough memory."""
    cache = f"a context of {needs.min_context} tokens"
    if needs.kv_tokens_named is not None:
        cache = f"a KV cache of {_mib(needs.kv_named)} MiB (KV_CACHE_MB)"
    figures = "; ".join(
        f"{s.device.label} has {s.device.free_mb} MiB free of the {s.needed_mb} MiB it would need"
        for s in lack.shares
        if not s.fits
    )
    note = f"; {needs.note}" if needs.note else ""
    return f"the model does not fit with {cache}: {figures}{note}"


def _insufficient(needs: Needs, lack: _NoRoom, why: str, *, can_ever_fit: bool) -> Refusal:
    """The refusal of a load that does not fit, with the figures of every card."""
    never = "" if can_ever_fit else "; it cannot fit this machine with these settings"
    return Refusal(
        "INSUFFICIENT_MEMORY",
        why + never,
        before_loading=True,
        can_ever_fit=can_ever_fit,
        per_card=[share.described() for share in lack.shares],
        working_memory={"method": "estimated", "tokens": needs.working_tokens},
        short_devices=[share.device.label for share in lack.shares if not share.fits],
        min_context_tokens=needs.min_context,
        model_max_context_tokens=needs.model_max_context,
        rebalance_passes=lack.passes,
        lowered_limits=lack.lowered,
    )


# ---------------------------------------------------------------- arithmetic


def _mib(size: int) -> int:
    return -(-size // MIB)


def _whole(needs: Needs, device: Device) -> Share:
    return _share(needs, device, 0, len(needs.layers), is_first=True, is_last=True)


def _share(
    needs: Needs, device: Device, start: int, end: int, *, is_first: bool, is_last: bool
) -> Share:
    """What a device takes that holds the layers from `start` to before `end`; nothing if it holds no layer."""
    count = end - start
    if not count and not (is_first and is_last):
        return Share(device, 0, 0, 0, 0, 0)
    weights = sum(needs.layers[start:end])
    weights += (needs.first if is_first else 0) + (needs.last if is_last else 0)
    return Share(
        device,
        count,
        _mib(weights),
        _mib(needs.kv_bytes(count)),
        _mib(needs.working),
        _mib(needs.staging),
    )


def _shares(needs: Needs, devices: Sequence[Device], counts: Sequence[int]) -> list[Share]:
    """The shares of the devices. The first device with layers also holds what runs before the layers, the last one what
    runs behind them."""
    used = [i for i, count in enumerate(counts) if count]
    shares, start = [], 0
    for i, (device, count) in enumerate(zip(devices, counts, strict=True)):
        ends = {"is_first": i == used[0], "is_last": i == used[-1]}
        shares.append(_share(needs, device, start, start + count, **ends))
        start += count
    return shares


def _split(needs: Needs, devices: Sequence[Device]) -> tuple[list[Share], int, dict[str, int]]:
    """The shares of the devices. Layers are given out in order, in proportion to free memory, and then moved between
    neighbours until all devices fit or no move helps.

    Also returns the number of passes that moved layers, and, for each device that gave layers away, its MiB of weights.
    """
    counts = _proportional(needs, devices)
    lowered: dict[str, int] = {}
    shares = _shares(needs, devices, counts)
    for passes in range(PASSES_MAXIMUM + 1):
        if all(share.fits for share in shares) or passes == PASSES_MAXIMUM:
            break
        before = list(counts)
        _push(needs, devices, counts, range(len(devices) - 1), 1)
        _push(needs, devices, counts, range(len(devices) - 1, 0, -1), -1)
        shares = _shares(needs, devices, counts)
        if counts == before:
            break
        for was, now, share in zip(before, counts, shares, strict=True):
            if now < was:
                lowered[share.device.label] = share.weights_mb
    return shares, passes, lowered


def _push(
    needs: Needs, devices: Sequence[Device], counts: list[int], order: range, step: int
) -> None:
    """Each device that lacks memory gives its outermost layers to the neighbour at distance `step`."""
    for i in order:
        while counts[i] and not _shares(needs, devices, counts)[i].fits:
            counts[i] -= 1
            counts[i + step] += 1


def _proportional(needs: Needs, devices: Sequence[Device]) -> list[int]:
    """The number of layers for each device, by its free memory. A card without room for working memory and one layer
    gets no layer."""
    fixed = _mib(needs.working) + _mib(needs.staging)
    least = _mib(min(needs.layers) + needs.kv_bytes(1))
    rooms = [d.free_mb - d.context_mb - fixed for d in devices]
    rooms = [room if room >= least else 0 for room in rooms]
    total, layers = sum(rooms), len(needs.layers)
    if not total:
        return [layers, *[0] * (len(devices) - 1)]
    return _counts(layers, rooms)


def _counts(layers: int, proportions: Sequence[float]) -> list[int]:
    """`layers` divided in these proportions, in whole numbers."""
    total = sum(proportions)
    bounds = [round(layers * sum(proportions[: i + 1]) / total) for i in range(len(proportions))]
    return [bound - before for before, bound in zip([0, *bounds], bounds, strict=False)]
