"""An attached SAE, as the rules see it."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.rules.steering.live import key_of


@dataclass(frozen=True)
class Sae:
    sae_id: str
    layer: int
    d_sae: int = 10

    @property
    def key(self) -> str:
        return key_of(self.sae_id, self.layer)

    def is_named(self, sae_id: str) -> bool:
        return sae_id == self.sae_id
