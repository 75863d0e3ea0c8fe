"""The model in the one slot, and the SAEs attached to it, as values that the conductor writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from steerserve.control.residency.engines import Engine
from steerserve.engine.wire.messages import Attached, Loaded, SaeSource
from steerserve.errors import Refusal
from steerserve.rules.residency import Phase
from steerserve.rules.steering import key_of
from steerserve.store.catalog import ModelRow

log = structlog.get_logger(__name__)

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


@dataclass(slots=True)
class Resident:
    """A model in the one slot, from the moment its load is accepted."""

    row: ModelRow
    phase: Phase = Phase.LOADING
    engine: Engine | None = None
    facts: Loaded | None = None
    loaded_at: datetime | None = None
    placement: dict[str, Any] | None = None
    is_locked: bool = False
    attachments: dict[str, Attachment] = field(default_factory=dict)
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def hold(self) -> None:
        self.users += 1
        self.unused.clear()

    def let_go(self) -> None:
        self.users -= 1
        if not self.users:
            self.unused.set()

    async def until_unused(self, what: str, seconds: float) -> None:
        """Wait for those who hold the model, at most so long; `what` is what waits for them."""
        if not self.users:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.unused.wait()
        except TimeoutError:
            log.warning(f"{what}_before_requests_ended", requests=self.users)

    def held(self) -> Engine:
        """The engine, for one who holds the model: it serves until it is ended, also while an unload waits."""
        assert self.engine is not None
        return self.engine

    def running(self) -> tuple[Engine, Loaded]:
        """The engine and facts of a loaded model.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        if self.phase is not Phase.LOADED or self.engine is None or self.facts is None:
            raise Refusal("MODEL_NOT_LOADED", "no model is loaded")
        return self.engine, self.facts
