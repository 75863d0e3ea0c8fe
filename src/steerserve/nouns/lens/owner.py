"""The logit lens, and attribution of logits to features: texts that the resident model reads, unsteered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec import UNSET

from steerserve import messages as m
from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Generation, Run
from steerserve.control.models.served import ServedModel, ServedModels, check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.files import local
from steerserve.files.client_paths import ClientPaths
from steerserve.nouns.features.owner import Features
from steerserve.nouns.lens import rules
from steerserve.nouns.lens.form import (
    AttributedFeature,
    AttributionAnswer,
    LayerLens,
    LensAnswer,
    ProbableToken,
    TokenText,
)
from steerserve.nouns.trained_lenses.owner import TrainedLenses

Kind = TypeVar("Kind", m.LensRead, m.Attributed)


class Lenses:
    """Reads texts with the resident model; it never loads one. A text takes a slot as every inference request does."""

    def __init__(
        self,
        generation: Generation,
        models: ServedModels,
        conductor: Conductor,
        features: Features,
        trained: TrainedLenses,
        paths: ClientPaths,
    ) -> None:
        self._generation = generation
        self._models = models
        self._conductor = conductor
        self._features = features
        self._trained = trained
        self._paths = paths

    async def lens(self, asked: Asked) -> LensAnswer:
        """Raises:
        Refusal: every refusal of an inference request; INVALID_PARAMETER for a GGUF model; SAE_INCOMPATIBLE for an
            architecture whose logits are more than its final norm and output embedding over the residual stream;
            INVALID_PARAMETER for a layer outside the model or the trained lens, and for an answer that would be too
            large; LENS_NOT_FOUND, INVALID_LOCAL_PATH, INVALID_LENS, LENS_MISMATCH for a trained lens.
        """
        model = await self._model()
        goal = asked.goal
        assert isinstance(goal, m.Lens)
        rules.check_layers(goal.layers, self._layers())
        async with (
            self._located(asked, goal) as (located, lens_id),
            self._generation.open(located, model) as run,
        ):
            read = await _outcome(run, m.LensRead)
        return LensAnswer(
            model=run.model_name,
            system_fingerprint=run.fingerprint,
            kind=read.kind,
            lens_id=lens_id,
            tokens=[TokenText(*token) for token in read.tokens],
            layers=[
                LayerLens(
                    one.layer,
                    [
                        [ProbableToken(t.token, t.text, t.probability) for t in at]
                        for at in one.positions
                    ],
                )
                for one in read.layers
            ],
        )

    async def attribute(self, asked: Asked) -> AttributionAnswer:
        """Raises:
        Refusal: every refusal of an inference request; SAE_NOT_ATTACHED; SAE_INCOMPATIBLE as `lens`, and for an SAE
            whose values are not a part of the residual stream; INVALID_PARAMETER where several SAEs could be meant, for
            a position outside the text, and for a token outside the vocabulary.
        """
        model, goal = await self._model(), asked.goal
        assert isinstance(goal, m.Attribute)
        layers = self._layers()
        async with self._generation.open(asked, model) as run:
            found = await _outcome(run, m.Attributed)
        sae = run.admitted.attributed
        assert sae is not None
        labels = await self._features.labels(sae.sae_id)
        return AttributionAnswer(
            model=run.model_name,
            system_fingerprint=run.fingerprint,
            sae_id=sae.sae_id,
            layer=sae.layer,
            method=found.method,
            over=goal.over,
            steps=goal.steps if found.method == "integrated" else None,
            position=found.position,
            token=TokenText(*found.token),
            target=TokenText(*found.target),
            against=None if found.against is None else TokenText(*found.against),
            features=[
                AttributedFeature(
                    index=one.feature,
                    position=one.position,
                    activation=one.activation,
                    contribution=one.contribution,
                    label=labels.get(one.feature, UNSET),
                )
                for one in found.features
            ],
            active=found.active,
            total=found.total,
            whole=found.whole,
            whole_before_softcap=found.uncapped,
            left_out=found.whole - found.total,
            explained=rules.explained(
                found.total, found.whole if found.effect is None else found.effect
            ),
            effect=found.effect,
            error=found.error,
            direct_only=found.method == "direct"
            and rules.is_direct_only(sae.site, sae.layer, layers),
        )

    @asynccontextmanager
    async def _located(self, asked: Asked, goal: m.Lens) -> AsyncIterator[tuple[Asked, str | None]]:
        """The request with the path of its trained lens, and the id of the lens.

        Raises:
            Refusal: LENS_NOT_FOUND, INVALID_LOCAL_PATH.
        """
        if asked.lens is not None:
            async with self._trained.used(asked.lens) as row:
                yield asked.with_goal(path=row.path), row.id
        elif goal.path is not None:
            await asyncio.to_thread(self._paths.check_allowed, goal.path)
            path = await asyncio.to_thread(local.resolve_either, goal.path)
            yield asked.with_goal(path=str(path)), None
        else:
            yield asked, None

    async def _model(self) -> ServedModel:
        """The model that texts are read with.

        Raises:
            Refusal: MODEL_NOT_LOADED; INVALID_PARAMETER for a GGUF model, and a model that can only
                embed.
        """
        row = self._conductor.loaded().row
        check_layered(row)
        return await self._models.served_model(row)

    def _layers(self) -> int:
        """The number of layers of the loaded model."""
        _, facts = self._conductor.loaded().running()
        return facts.layers


async def _outcome(run: Run, kind: type[Kind]) -> Kind:
    """The one outcome of a request."""
    found: Kind | None = None
    async for event in run.events:
        if isinstance(event, kind):
            found = event
    assert found is not None
    return found
