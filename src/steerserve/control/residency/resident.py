"""The model in the one slot and the SAEs attached to it, as everybody may read them. `occupant.py` writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from steerserve.engine.wire.engine import Engine
from steerserve.engine.wire.messages import Attached, Loaded, SaeSource
from steerserve.rules.residency import Phase
from steerserve.rules.steering import key_of
from steerserve.store.catalog import ModelRow

Switch = Callable[[], None]
"""Puts what was prepared into force, in one step without waiting."""


@dataclass(frozen=True, slots=True)
class Order:
    """An SAE to attach to a model, as the engine is told it: now, and again after a crash. `dtype` is what its matrices are
    to be kept in, None what its file has; `warnings` are what was found before the engine was asked."""

    model_id: int
    sae_id: str
    layer: int
    source: SaeSource
    dtype: str | None
    is_checked: bool
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return key_of(self.sae_id, self.layer)


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attached SAE, as the engine made it. `dtype` is what its matrices are kept in, `site` where it reads and writes."""

    order: Order
    d_sae: int
    memory_mb: int
    layer_module_path: str
    warnings: tuple[str, ...]
    check: dict[str, float]
    dtype: str
    site: str
    is_calibrated: bool

    @classmethod
    def of(cls, order: Order, made: Attached) -> Attachment:
        """What the engine answered to an order."""
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

    @property
    def place(self) -> tuple[int, str]:
        """The model and the key: the same after a crash, when the engine has attached it again."""
        return self.order.model_id, self.key


class Resident(Protocol):
    """The model in the one slot, from the moment its load is accepted, as everybody outside of this room sees it: nothing
    of it can be written."""

    @property
    def row(self) -> ModelRow:
        """Its record, as it was read or written last."""

    @property
    def phase(self) -> Phase: ...

    @property
    def engine(self) -> Engine | None:
        """The engine that holds it or loads it; None before that engine was started."""

    @property
    def facts(self) -> Loaded | None:
        """What the engine said of it when it was loaded; None before that."""

    @property
    def loaded_at(self) -> datetime | None: ...

    @property
    def placement(self) -> Mapping[str, Any] | None:
        """Where its weights lie, as records show it; None before it was loaded."""

    @property
    def is_locked(self) -> bool: ...

    @property
    def attachments(self) -> Mapping[str, Attachment]:
        """The attached SAEs by their keys, in the order in which they were attached."""

    @property
    def ready(self) -> asyncio.Future[None]:
        """Done once its load is over: without a result when it serves, else with the refusal that ended the load."""

    def held(self) -> Engine:
        """The engine, for one who holds the model: it serves until it is ended, also while an unload waits."""

    def running(self) -> tuple[Engine, Loaded]:
        """The engine and facts of a loaded model.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
