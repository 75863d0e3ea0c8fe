"""The tokens that the directions of a stored vector promote and suppress."""

from __future__ import annotations

from steerserve import messages as m
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.nouns.directions.owner import Vectors
from steerserve.nouns.features.form import DirectionTokens, VectorTokens
from steerserve.nouns.features.owner import promoted
from steerserve.rules.saes.sites import STREAM_SITES
from steerserve.rules.steering import vector as rules

AT_ONCE = 16
"""The most directions of one question. The engine answers as many of them as do not hold up the batch."""


class PromotingVectors:
    """Asks the loaded model about the directions of vectors."""

    def __init__(self, vectors: Vectors, conductor: Conductor) -> None:
        self._vectors = vectors
        self._conductor = conductor

    async def tokens(self, id_or_name: str, layer: int | None, top: int) -> VectorTokens:
        """For each direction of a vector, or for its directions at one layer, the `top` tokens that it promotes most
        and those that it suppresses most.

        Raises:
            Refusal: VECTOR_NOT_FOUND; VALIDATION_ERROR for a layer that the vector does not have; MODEL_NOT_LOADED;
                VECTOR_MISMATCH for a vector that does not fit the loaded model; SAE_INCOMPATIBLE for an architecture
                whose unembedding is not known; INVALID_PARAMETER for a GGUF model, and one that can only embed.
        """
        vector = await self._vectors.find(id_or_name)
        directions = rules.directions_at(vector, layer)
        resident = self._conductor.loaded()
        check_layered(resident.row)
        engine, facts = resident.running()
        rules.check_fits(vector.name, directions, facts.layers, facts.site_widths)
        asked = [one.data for one in directions if one.site in STREAM_SITES]
        found = iter(
            await promoted(
                engine,
                len(asked),
                lambda done: m.Promote(
                    directions=b"".join(asked[done : done + AT_ONCE]), top=top, is_spelled=True
                ),
            )
        )
        return VectorTokens(
            vector.id,
            [
                DirectionTokens(
                    one.layer,
                    one.site,
                    *(next(found) if one.site in STREAM_SITES else (None, None)),
                )
                for one in directions
            ],
        )
