"""The model in the one slot and the SAEs attached to it, as everybody may read them. `occupant.py` writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from steerserve.database.catalog import ModelRow
from steerserve.errors import Refusal
from steerserve.messages import Attached, Loaded, PlacedSae, SaeSource
from steerserve.messages.engine import Engine
from steerserve.rules.residency.heartbeat import Silence
from steerserve.rules.residency.memory_fit import ModelPlacement
from steerserve.rules.residency.swap import Phase
from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering import digest
from steerserve.rules.steering.digest import SteeredModel, SteeredSite
from steerserve.rules.steering.live import key_of

Switch = Callable[[], None]
"""Makes a prepared change effective, in one step without waiting."""


@dataclass(frozen=True, slots=True)
class Order:
    """An SAE to attach to a model. The engine gets the order now, and the next engine gets it again after a crash.
    `dtype` is the dtype of the matrices, None for the dtype of the file. `warnings` come from the checks before the
    engine is asked. `origin` identifies the SAE on every machine. `ids` gives all ids that name the SAE now."""

    model_id: int
    sae_id: str
    layer: int
    source: SaeSource
    dtype: str | None
    is_checked: bool
    warnings: tuple[str, ...] = ()
    origin: SaeOrigin = field(default_factory=SaeOrigin)
    ids: Callable[[], Collection[str]] = field(default=tuple, compare=False)

    @property
    def key(self) -> str:
        return key_of(self.sae_id, self.layer)

    @property
    def placed(self) -> PlacedSae:
        """The SAE in the form in which the state of an engine has it."""
        return PlacedSae(self.key, self.source, self.layer, self.dtype, self.is_checked)

    @property
    def scale(self) -> dict[str, Any]:
        """The overrides that change the added vector. An override of the site is not among them."""
        said = self.source.overrides
        scale = {
            "normalisation": said.normalisation,
            "norm_factor": said.norm_factor,
            "is_centred": said.is_centred,
        }
        return {name: value for name, value in scale.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attached SAE, with the facts from the engine. `dtype` is the dtype of its matrices, `site` the site where it
    reads and writes, `k` how many features it chooses at each token, None where their number is free."""

    order: Order
    d_sae: int
    memory_mb: int
    layer_module_path: str
    warnings: tuple[str, ...]
    check: dict[str, float]
    dtype: str
    site: str
    is_calibrated: bool
    k: int | None

    @classmethod
    def from_order(cls, order: Order, made: Attached) -> Attachment:
        """The attachment from an order and the engine's answer to the order."""
        return cls(
            order=order,
            d_sae=made.d_sae,
            memory_mb=made.memory_mb,
            layer_module_path=made.layer_module_path,
            warnings=tuple(dict.fromkeys((*order.warnings, *made.warnings))),
            check=made.check,
            dtype=made.dtype,
            site=made.site,
            is_calibrated=made.is_calibrated,
            k=made.k,
        )

    @property
    def key(self) -> str:
        return self.order.key

    @property
    def sae_id(self) -> str:
        return self.order.sae_id

    @property
    def layer(self) -> int:
        return self.order.layer

    def is_named(self, sae_id: str) -> bool:
        return sae_id == self.sae_id or sae_id in self.order.ids()

    @property
    def place(self) -> tuple[int, str]:
        """The model and the key. Both are the same after a crash, when a new engine has attached the SAE again."""
        return self.order.model_id, self.key


class Resident(Protocol):
    """The model in the one slot, from the moment when its load is accepted. Everybody outside of this room sees this
    read-only view."""

    @property
    def row(self) -> ModelRow:
        """The record of the model, as it was read or written last."""

    @property
    def phase(self) -> Phase: ...

    @property
    def engine(self) -> Engine | None:
        """The engine that loads or holds the model; None before the engine was started."""

    @property
    def facts(self) -> Loaded | None:
        """The facts that the engine reported when the model was loaded; None before that."""

    @property
    def loaded_at(self) -> datetime | None: ...

    @property
    def placement(self) -> ModelPlacement | None:
        """The devices of the weights, as records show them; None before the model was loaded."""

    @property
    def silence(self) -> Silence | None:
        """For how long the engine had sent no heartbeat at the last look; None before the first look."""

    @property
    def is_locked(self) -> bool: ...

    @property
    def attachments(self) -> Mapping[str, Attachment]:
        """The attached SAEs by their keys, in the order in which they were attached."""

    @property
    def ready(self) -> asyncio.Future[None]:
        """Done once the load is over: without a result if the model serves, else with the refusal that ended the
        load."""

    def held(self) -> Engine:
        """The engine, for a request that holds the model. It serves until the unload ends it, also while the unload
        waits."""

    def running(self) -> tuple[Engine, Loaded]:
        """The engine and facts of a loaded model.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """


def content_key(resident: Resident, attached: Attachment) -> str:
    """The key of the content of an attached SAE and of its model."""
    return content_keys(resident, attached)[0]


def content_keys(resident: Resident, attached: Attachment) -> tuple[str, ...]:
    """The keys of the content of an attached SAE and of its model: first the present one, then those of before, when
    the digests of models had other rules."""
    row, order = resident.row, attached.order
    site = SteeredSite(order.sae_id, order.origin, order.layer, attached.site, order.scale)
    return tuple(
        digest.place_key(SteeredModel(row.name, row.repo_id, row.revision, one), site)
        for one in (row.content_digest, *row.content_aliases)
    )


def check_held(resident: Resident, attached: Iterable[Attachment]) -> None:
    """Check that the model of a job still serves, and that these SAEs are still attached.

    Raises:
        Refusal: MODEL_NOT_LOADED, SAE_NOT_ATTACHED.
    """
    resident.running()
    for one in attached:
        if resident.attachments.get(one.key) is not one:
            why = "the SAE was detached while its job ran"
            raise Refusal("SAE_NOT_ATTACHED", why, sae_id=one.sae_id, layer=one.layer)
