"""What parts of requests look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.control.inference.planning import Admitted
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.steering.interventions import EditParts
from steerserve.engines.sandbox.schemas import Checker
from steerserve.nouns.features.owner import Features
from steerserve.parts.part import Steering
from steerserve.rules.sensing.ranking import Scales
from steerserve.rules.steering.named_directions import NamedDirection


@dataclass(frozen=True, slots=True)
class Lookups:
    """The lookups of one request of a client (`parts/part.py`). `admitted` is the request once it holds its model."""

    edit_parts: EditParts
    features: Features
    corpora: CorpusResults
    checker: Checker
    client: str = ""
    admitted: Admitted | None = None

    async def directions(self, where: str, name: str) -> Sequence[NamedDirection]:
        return await self.edit_parts.directions(where, name)

    async def labels(self, sae_id: str) -> Mapping[int, str]:
        return await self.features.labels(sae_id)

    async def scales(self, key: str) -> Scales | None:
        assert self.admitted is not None
        return await self.corpora.scales(self.admitted.resident.attachments[key])

    def steering(self) -> Steering:
        assert self.admitted is not None
        return self.admitted.steering()

    def is_schema_checked(self, schema: Any) -> bool:
        return self.checker.has_passed(schema)

    async def check_schema(self, schema: Any) -> None:
        await self.checker.check_schema(schema, self.client)

    async def validate(self, schema: Any, text: str) -> str | None:
        return await self.checker.validate(schema, text, self.client)
