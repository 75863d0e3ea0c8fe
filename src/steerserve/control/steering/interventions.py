"""The live interventions, which steer every request without steering of its own; and the parts of edits that are looked
up before edits are placed: stored vectors and probes, and the largest activations that are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from steerserve import messages as m
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident
from steerserve.control.steering.sources import Captured, read_sources
from steerserve.control.steering.steering import Steering
from steerserve.control.steering.views import LiveInterventions
from steerserve.errors import Refusal
from steerserve.nouns.directions.owner import Probes, Vectors
from steerserve.rules.saes.sites import layers_of
from steerserve.rules.steering import interventions as rules
from steerserve.rules.steering import live as live_rules
from steerserve.rules.steering import named_directions
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.named_directions import NamedDirection
from steerserve.rules.steering.placed import INTERVENTIONS, Placed
from steerserve.rules.steering.placing import Largest, ModelFacts, placed, standing_of
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.request import INSTEAD, MAX, RequestSteering, SteeredFeature
from steerserve.rules.steering.vector import Vector
from steerserve.settings import Settings

Counted = Callable[[str, int], Awaitable[m.FeatureCount | None]]
"""(key, feature) -> what monitoring has counted of it."""
LargestRead = Callable[[Attachment, int], Awaitable[float | None]]
"""(SAE, feature) -> the feature's largest activation over all corpora; None where it is not known."""
Kind = TypeVar("Kind", Vector, Probe)


class EditParts:
    """Looks up what edits name."""

    def __init__(
        self,
        settings: Settings,
        vectors: Vectors,
        probes: Probes,
        counted: Counted,
        largest_read: LargestRead,
        captured: Captured,
    ) -> None:
        self._settings = settings
        self._vectors = vectors
        self._probes = probes
        self._counted = counted
        self._largest_read = largest_read
        self._captured = captured

    async def with_vectors(
        self, own: RequestSteering, *, has_layers: bool = False
    ) -> RequestSteering:
        """The edits with the stored vectors and probes that they name, and with the layers of trained vectors in edits
        that name none. Saved edits got their layers when they were saved: with `has_layers`, those without layers are
        of an earlier version, and act at all layers of the vector.

        Raises:
            Refusal: VECTOR_NOT_FOUND, PROBE_NOT_FOUND, whose `param` is the place of the name.
        """
        vectors, probes = own.references(), own.probes()
        if not vectors and not probes:
            return own
        return own.with_vectors(
            await _found(self._vectors.find, vectors),
            await _found(self._probes.find, probes),
            has_layers=has_layers,
        )

    async def with_sources(
        self, own: RequestSteering, resident: Resident, client: str = ""
    ) -> RequestSteering:
        """The edits with the values that they read in other texts, on the resident model, or in captures.

        Raises:
            Refusal: as `read_sources`.
        """
        return await read_sources(own, resident, self._settings, client, self._captured)

    async def with_layers(self, sent: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """Edits as they are saved: with the layers of the trained vectors that they name without layers. A vector that
        is not stored yet is left as it is.

        Raises:
            Refusal: INVALID_INTERVENTION, TOO_MANY_EDITS; DATABASE_UNAVAILABLE.
        """
        own = rules.parse({"edits": list(sent)}, "")
        default: dict[str, tuple[int, ...] | None] = {}
        for name in own.references():
            try:
                default[name] = (await self._vectors.find(name)).default_layers
            except Refusal as refusal:
                if refusal.code != "VECTOR_NOT_FOUND":
                    raise
        return own.with_layers(sent, default)

    async def directions(self, where: str, name: str) -> list[NamedDirection]:
        """The directions of the probe or the vector with this id. `where` names the id in refusals.

        Raises:
            Refusal: VECTOR_NOT_FOUND, PROBE_NOT_FOUND; INVALID_PARAMETER for what is no such id, and for a probe
                without a best layer.
        """
        if named_directions.is_probe(where, name):
            probes = await _found(self._probes.find, {name: where})
            return [named_directions.of_probe(where, probes[name])]
        vectors = await _found(self._vectors.find, {name: where})
        return named_directions.of_vector(where, vectors[name])

    async def largest(self, own: RequestSteering, attached: Sequence[Attachment]) -> Largest:
        """The largest activations of the features whose edits have values in that unit, as far as monitoring has
        observed them or a corpus has them.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        known: dict[tuple[str, int], float] = {}
        for edit in own.edits:
            if isinstance(edit, SteeredFeature) and edit.unit == MAX:
                for sae in edit.choice.among(attached):
                    counted = await self._counted(sae.key, edit.index)
                    found = [counted.max] if counted is not None else []
                    if edit.index < sae.d_sae:
                        read = await self._largest_read(sae, edit.index)
                        found += [read] if read is not None else []
                    if found:
                        known[sae.key, edit.index] = max(found)
        return known


async def _found(
    find: Callable[[str], Awaitable[Kind]], named: Mapping[str, str]
) -> dict[str, Kind]:
    """What is stored under these names, each with the place in the request that names it."""
    found = {}
    for name, place in named.items():
        try:
            found[name] = await find(name)
        except Refusal as refusal:
            why = f"{place}: {refusal.message}"
            raise Refusal(refusal.code, why, param=place, **refusal.details) from refusal
    return found


def facts_of(resident: Resident, largest: Largest) -> ModelFacts:
    """What edits need to know of the loaded model."""
    loaded, attached = resident.facts, resident.attachments
    if loaded is None:
        return ModelFacts()
    sites = {key: attachment.site for key, attachment in attached.items()}
    known = loaded.layers, loaded.site_widths, sites, largest, loaded.vocabulary
    return ModelFacts(*known, layers_of(loaded.sites))


class Interventions:
    """Owner of the live interventions. They are a part of the live steering, so they have its epoch and its lock, and
    are restored with it after a crash."""

    def __init__(self, steering: Steering, conductor: Conductor, parts: EditParts) -> None:
        self._steering = steering
        self._conductor = conductor
        self._parts = parts

    def state(self) -> LiveInterventions:
        live = self._steering.live
        return LiveInterventions(
            edits=[dict(one.sent) for one in live.standing],
            mode="replace" if live.interventions.replaces else "add",
            **structs.asdict(live.modifiers),
            enabled=live.enabled,
            epoch=live.epoch,
        )

    async def put(self, body: Mapping[str, object]) -> LiveInterventions:
        """Replace the live interventions, all of them or none. Without edits they end.

        Raises:
            Refusal: MODEL_NOT_LOADED; the refusals of `rules/steering/interventions.parse` and of
                `rules/steering/placing.placed`; VECTOR_NOT_FOUND; a refusal of the engine. Nothing has changed then.
        """
        asked = rules.parse(body, "")
        # for everyone the edits stand beside the live values, unless the body says otherwise
        asked = replace(asked, is_added=body.get("mode") != INSTEAD)
        resident = self._conductor.loaded()
        own = await self._parts.with_vectors(asked)
        if own.has_sources:
            async with self._conductor.in_flight(resident):
                own = await self._parts.with_sources(own, resident)
        largest = await self._parts.largest(own, self._conductor.attachments())
        sent = await self._parts.with_layers(_edits(body))

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            if self._conductor.loaded() is not resident:
                raise Refusal("MODEL_BUSY", "another model was loaded meanwhile; send it again")
            made = placed(own, attached, facts_of(resident, largest))
            put = replace(
                made,
                standing=standing_of(own, sent, made),
                modifiers=own.modifiers,
                replaces=not own.is_added,
            )
            return live_rules.give(live, INTERVENTIONS, put)

        await self._steering.act(step)
        return self.state()

    async def clear(self) -> LiveInterventions:
        """End the live interventions, also those that wait for their model to be loaded again after a crash.

        Raises:
            Refusal: a refusal of the engine. Nothing has changed then.
        """
        await self._steering.everywhere(lambda live: live_rules.give(live, INTERVENTIONS, Placed()))
        return self.state()


def _edits(body: Mapping[str, object]) -> list[Mapping[str, object]]:
    edits = body["edits"]
    assert isinstance(edits, list)
    return edits
