"""The features that fire on a text: a search with the resident model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from steerserve import messages as m
from steerserve.control.inference.texts import NamedText, TextReader, of_kind, of_part, prompt_of
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, check_held
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.errors import Refusal
from steerserve.messages.spelling import Spell
from steerserve.nouns.contrasts.owner import pooled_values
from steerserve.nouns.corpora.rules import groups
from steerserve.nouns.features.form import FeatureSearch, SimilarFeature
from steerserve.nouns.features.owner import Features
from steerserve.parts.pool.form import POOL, Pool, Pooled
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.sensing import ranking
from steerserve.rules.sensing.ranking import Scales
from steerserve.settings import Settings

Order = Literal["value", "share", "rarity"]
KIND = "text_search"


class TextSearch:
    """Searches in the attached SAEs of the resident model; it never loads one."""

    def __init__(
        self,
        settings: Settings,
        conductor: Conductor,
        reader: TextReader,
        features: Features,
        corpora: CorpusResults,
    ) -> None:
        self._settings = settings
        self._conductor = conductor
        self._reader = reader
        self._features = features
        self._corpora = corpora

    async def search(
        self, sae_id: str, text: str | Conversation, order: Order, limit: int, client: str
    ) -> FeatureSearch:
        """The features that fire on a text, each where it is largest. Position 0 and special tokens do not count. They
        are ordered by their values, by the share of the largest value that is known, or by this share times the rarity
        of the feature.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE, SAE_NOT_ATTACHED, MODEL_NOT_LOADED; INVALID_PARAMETER for an order
                that needs a corpus, and for a text of which no position counts; PAYLOAD_TOO_LARGE; what a scoring
                request is refused.
        """
        sae_id = await self._features.own_id(sae_id)
        resident = self._conductor.loaded()
        attached = next((a for a in resident.attachments.values() if a.sae_id == sae_id), None)
        if attached is None:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE is not attached", sae_id=sae_id)
        scales = await self._corpora.scales(attached)
        if scales is None and order != "value":
            raise ranking.unknown("order")
        prompt = prompt_of(text, client)
        engine, _ = resident.running()
        longest = self._settings.tokenize_max_characters
        spelled = await engine.ask(Spell(prompt=prompt, longest=longest, client=client))
        texts = [NamedText("text" if isinstance(text, str) else "messages", prompt)]
        pooled, read = await self._read(texts, resident, attached)
        values = pooled_values(pooled, texts[0].name)
        places = await asyncio.to_thread(_places, read.saes[0], values)
        values = {index: value for index, value in values.items() if index in places}
        best = _ordered(values, order, scales, limit)
        labels = await self._features.labels(sae_id)
        found = [
            SimilarFeature(
                feature_idx=index,
                label=labels.get(index),
                cosine=None,
                value=value,
                share=None if scales is None else scales.share(index, value),
                index=index,
                position=places[index],
                token=spelled.pieces[places[index]],
            )
            for index, value in best
        ]
        return FeatureSearch(sae_id, None, None, found, len(values))

    async def _read(
        self, texts: Sequence[NamedText], resident: Resident, attached: Attachment
    ) -> tuple[Pooled, m.ActivationsRead]:
        """The largest activation of each feature on the one text, and all activations with their positions."""
        take = of_part(POOL)
        pool, keys = Pool(attached.key, "max"), [attached.key]
        check_still_held = partial(check_held, resident, [attached])
        (pooled,) = await self._reader.read(
            texts,
            resident,
            m.Request(goal=m.Score(), prompts=(), client=KIND, parts=POOL.ask(pool)),
            take,
            check=check_still_held,
        )
        (read,) = await self._reader.read(
            texts,
            resident,
            m.Request(goal=m.ReadActivations(keys=keys), prompts=(), client=KIND),
            of_kind(m.ActivationsRead),
            check=check_still_held,
        )
        return pooled, read


def _ordered(
    values: Mapping[int, float], order: Order, scales: Scales | None, limit: int
) -> Sequence[tuple[int, float]]:
    if scales is None:
        return sorted(values.items(), key=lambda one: -one[1])[:limit]
    return ranking.best(values.items(), order, scales, limit)


def _places(read: m.FeatureValues, values: Mapping[int, float]) -> dict[int, int]:
    """The position of each of these activations: the one where the feature is nearest to it. Both were read in passes
    of their own, which may differ in the last digits, so a value near 0 may be missing in the second one."""
    found = groups(read.features, read.counts, read.positions, read.values)
    places = {}
    for feature, value in values.items():
        some = found.places_of(feature)
        if some:
            away = {at: abs(found.values[at] - value) for at in some}
            places[feature] = found.positions[min(away, key=away.__getitem__)]
    return places
