"""What parts of requests look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steerserve.control.residency.resident import Resident
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.steering.interventions import EditParts
from steerserve.nouns.features.owner import Features
from steerserve.rules.sensing.ranking import Scales
from steerserve.rules.steering.named_directions import NamedDirection


@dataclass(frozen=True, slots=True)
class Lookups:
    """The lookups of one request (`parts/part.py`), which holds the `resident` model."""

    edit_parts: EditParts
    features: Features
    corpora: CorpusResults
    resident: Resident | None = None

    async def directions(self, where: str, name: str) -> Sequence[NamedDirection]:
        return await self.edit_parts.directions(where, name)

    async def labels(self, sae_id: str) -> Mapping[int, str]:
        return await self.features.labels(sae_id)

    async def scales(self, key: str) -> Scales | None:
        assert self.resident is not None
        return await self.corpora.scales(self.resident.attachments[key])
