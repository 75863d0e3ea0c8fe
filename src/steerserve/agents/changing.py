"""The tools that change the service for everybody who uses it. They are there with `--allow-changes` only."""

from typing import Annotated, Literal

from pydantic import Field

from steerserve.agents.reading import Layer, Message, SaeId
from steerserve.client import AsyncClient
from steerserve.client.calls import drop_none
from steerserve.client.faults import InvalidParameter, ProfileNotFound

Model = Annotated[int | str, Field(description="Id or name of a registered model.")]


class Changing:
    """Tools that change the service."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def set_steering(
        self,
        values: Annotated[
            dict[int, float], Field(description="Feature index -> value from -200 to 200.")
        ],
        sae_id: SaeId = None,
        layer: Layer = None,
    ) -> object:
        """Set live values of features, which steer every request without steering of its own. Values of other features
        stay."""
        return await self._client.steering.set(values, **drop_none(sae_id=sae_id, layer=layer))

    async def set_interventions(
        self,
        edits: list[dict[str, object]],
        preserve_norm: bool | None = None,
    ) -> object:
        """Replace the live edits, which act on every request without steering of its own. An empty list ends them."""
        return await self._client.interventions.set(edits, **drop_none(preserve_norm=preserve_norm))

    async def clear_steering(self) -> object:
        """Clear all live values and edits."""
        return await self._client.steering.clear()

    async def load_model(self, model: Model) -> object:
        """Load a model in the place of the loaded one, and wait until it is loaded. Its SAEs are detached."""
        return await self._client.models.load(model, progress=False)

    async def unload_model(self, model: Model) -> object:
        """Take a model out of memory."""
        return await self._client.models.unload(model)

    async def attach_sae(
        self,
        sae: Annotated[str, Field(description="Id, name or path of a registered SAE.")],
        layer: Annotated[
            int | None, Field(description="By default the layer that it was trained on.")
        ] = None,
        beside: Annotated[bool, Field(description="Keep the SAEs that are attached.")] = False,
    ) -> object:
        """Attach an SAE to the loaded model, in the place of those that are attached."""
        record = await self._client.saes.find(sae)
        at = record.trained_layer if layer is None else layer
        if at is None:
            raise InvalidParameter("the SAE does not say its layer", details={"param": "layer"})
        if beside:
            return await self._client.saes.attach_set([{"sae_id": record.id, "layer": at}])
        return await self._client.saes.attach(record.id, layer=at)

    async def detach_sae(
        self, sae: Annotated[str, Field(description="Id, name or path.")]
    ) -> object:
        """Detach an SAE. Its live values are cleared."""
        return await self._client.saes.detach((await self._client.saes.find(sae)).id)

    async def save_profile(self, name: str, description: str | None = None) -> object:
        """Save the live values as a profile."""
        return await self._client.profiles.save_current(name, **drop_none(description=description))

    async def activate_profile(
        self, profile: Annotated[str, Field(description="Id or name of a saved profile.")]
    ) -> object:
        """Let a saved profile steer every request without steering of its own."""
        found = await self._client.profiles.find(profile)
        return await self._client.profiles.activate(found.id)

    async def deactivate_profile(self) -> object:
        """End the active profile, and clear its values."""
        active = await self._client.profiles.active()
        if active is None:
            raise ProfileNotFound("no profile is active")
        return await self._client.profiles.deactivate(active.id)

    async def train_vector(
        self,
        name: str,
        positives: list[str | list[Message]],
        negatives: list[str | list[Message]],
        layers: list[int] | None = None,
    ) -> object:
        """Train a vector, the direction from the negative texts to the positive ones, and store it. The answer has its
        AUC on held-out texts for each layer."""
        begun = await self._client.vectors.train(
            name, positives=positives, negatives=negatives, **drop_none(layers=layers)
        )
        return (await self._client.jobs.wait(begun.id, progress=False)).result

    async def capture_texts(
        self,
        name: str,
        texts: list[str | list[Message]],
        sites: Annotated[
            list[dict[str, object]],
            Field(
                description="What is read: [{site: 'resid_post', layers: [10, 14]}, …]; layers may be 'all', "
                "and a site with heads (hook_z) may have heads: [0, 5]."
            ),
        ],
        positions: Annotated[
            str, Field(description="`all`, or `last` for one row of each context.")
        ] = "all",
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> object:
        """Read the values of sites of the model over texts into files of the service. The answer has the id of the
        capture, and how many rows it has."""
        begun = await self._client.captures.read(
            name, sites, texts=texts, positions=positions, dtype=dtype
        )
        return (await self._client.jobs.wait(begun.id, progress=False)).result

    async def delete_capture(self, capture_id: str) -> object:
        """Delete a capture with its files."""
        return await self._client.captures.delete(capture_id)

    async def delete_vector(self, vector: str) -> object:
        """Forget a stored vector."""
        return await self._client.vectors.delete(vector)
