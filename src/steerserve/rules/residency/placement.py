"""The cards that a load may use: reading the `gpu` field, and finding the cards that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.residency.gpus import Card

_UUID = re.compile(r"(?:gpu-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_INDEX = re.compile(r"[0-9]{1,9}")


class GpuChoice(StrEnum):
    AUTO = "auto"
    ALL = "all"
    CARD = "card"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A request for one card by its index or UUID (`gpu-` and lower case), for all cards, or for any cards that fit."""

    choice: GpuChoice = GpuChoice.AUTO
    index: int | None = None
    uuid: str | None = None

    @property
    def named(self) -> str | int | None:
        """The card or cards that the client named; None if the client left the choice open."""
        if self.choice is GpuChoice.ALL:
            return "all"
        return self.uuid if self.uuid is not None else self.index


def parse(gpu: object) -> GpuRequest:
    """Read the `gpu` of a load.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    if gpu is None:
        return GpuRequest()
    if isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0:
        return GpuRequest(GpuChoice.CARD, index=gpu)
    if isinstance(gpu, str):
        text = gpu.strip().lower()
        if text in ("auto", "all"):
            return GpuRequest(GpuChoice(text))
        if _INDEX.fullmatch(text):
            return GpuRequest(GpuChoice.CARD, index=int(text))
        uuid = _UUID.fullmatch(text)
        if uuid:
            return GpuRequest(GpuChoice.CARD, uuid=f"gpu-{uuid[1]}")
    message = 'gpu must be "auto", "all", the index of a card (0 or more), or its UUID'
    raise refuse_value(["body", "gpu"], "not a card", message, param="gpu")


def select(wanted: GpuRequest, cards: Sequence[Card]) -> list[Card]:
    """The cards that a load may use. On a host without cards the list is empty, and the host's memory is used.

    Cards that the tensor library does not see are left out.

    Raises:
        Refusal: GPU_NOT_FOUND.
    """
    visible = [card for card in cards if card.torch_index is not None]
    if wanted.choice is not GpuChoice.CARD:
        return visible
    for card in visible:
        if card.smi_index == wanted.index or _normal(card.uuid) == wanted.uuid:
            return [card]
    raise Refusal(
        "GPU_NOT_FOUND",
        f"no card {wanted.named} is visible here",
        requested=wanted.named,
        visible=[{"index": c.smi_index, "uuid": c.uuid, "name": c.name} for c in visible],
    )


def _normal(uuid: str) -> str:
    text = uuid.strip().lower()
    return text if text.startswith("gpu-") else f"gpu-{text}"
