"""The features of an SAE, attached or not: their labels, their geometry, which of them lie near each other, and the
tokens that they promote. Directions of vectors promote tokens as features do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import structs

from steerserve import messages as m
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.resident import Attachment
from steerserve.control.saes.example_views import FeatureExample
from steerserve.control.saes.reading import READ_SECONDS
from steerserve.control.saes.records import source_of
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.threads import Threads
from steerserve.database.catalog import SaeRow
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.messages.engine import Engine
from steerserve.nouns.features.form import (
    DirectionTokens,
    FeatureDetails,
    FeatureLabel,
    FeatureSearch,
    ImportedLabels,
    LabelPage,
    SimilarFeature,
    TokenEffect,
)
from steerserve.nouns.labels import rules
from steerserve.nouns.labels.store import Labels
from steerserve.nouns.monitoring import rules as monitoring
from steerserve.nouns.monitoring.form import figures
from steerserve.nouns.saes.owner import Saes
from steerserve.rules.saes.sets import check_files
from steerserve.rules.saes.sites import STREAM_SITES
from steerserve.rules.sensing import promoting
from steerserve.rules.steering.live import check_index
from steerserve.rules.steering.vector import Direction, check_fits

NEAREST_MAXIMUM = 1000
"""The most neighbours that a search by index and words looks at."""
DIRECTIONS_AT_ONCE = 16
"""The most directions of one question. The engine answers as many of them as do not hold up the batch."""

Statistics = Callable[[str, int], Awaitable[m.FeatureCount | None]]
"""(key of an attachment, index of a feature) -> the feature's statistics from monitoring; None if it was not
observed."""


Sides = tuple[list[TokenEffect], list[TokenEffect]]
"""The tokens that a direction promotes most, and those that it suppresses most."""


class Features:
    """Reads and writes the labels, and asks engines for all other facts. SAEs that are not attached are read one at a
    time."""

    def __init__(
        self,
        labels: Labels,
        saes: Saes,
        reader: Threads,
        conductor: Conductor,
        launcher: Engines,
        statistics: Statistics,
        corpora: CorpusResults,
    ) -> None:
        self._labels = labels
        self._saes = saes
        self._reader = reader
        self._conductor = conductor
        self._launcher = launcher
        self._statistics = statistics
        self._corpora = corpora
        self._reading = asyncio.Lock()

    # ------------------------------------------------------------- labels

    async def labels(self, sae_id: str) -> Mapping[int, str]:
        """Feature index -> label, for answers that are complete without labels. Empty for an SAE without labels, and
        while the database cannot be read."""
        try:
            return await self._labels.labels_of(sae_id)
        except Refusal as refusal:
            if refusal.code != "DATABASE_UNAVAILABLE":
                raise
            return {}

    async def page(
        self,
        sae_id: str,
        query: str | None,
        limit: int,
        offset: int,
        features: Sequence[int] | None = None,
    ) -> LabelPage:
        """Labels of an SAE in the order of their features. With `features`, only labels of these features.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        sae_id = (await self._saes.get(sae_id)).id
        every = await self._labels.labels_of(sae_id)
        wanted = every
        if features is not None:
            wanted = {index: every[index] for index in sorted(set(features)) if index in every}
        if not query:
            matched, found = len(wanted), list(islice(wanted.items(), offset, offset + limit))
        else:
            matching = await asyncio.to_thread(_matching, wanted, query)
            matched, found = len(matching), matching[offset : offset + limit]
        labels = [FeatureLabel(*one) for one in found]
        return LabelPage(sae_id, labels, matched, len(every), limit, offset)

    async def add_labels(self, sae_id: str, document: object, *, replace: bool) -> ImportedLabels:
        """Store the labels of a document (see `rules.labels.parse`): all of them or none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE (a record that is not one SAE), VALIDATION_ERROR,
                INVALID_FEATURE_INDEX.
        """
        row, d_sae = await self._one(sae_id)
        parsed = await self._reader.run(rules.parse, document, d_sae)
        return await self._put(row, parsed, replace=replace)

    async def add_body(
        self, sae_id: str, body: bytes, *, is_lines: bool, replace: bool
    ) -> ImportedLabels:
        """Store the labels in the body of an import (see `rules.labels.read`): all of them or none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE (a record that is not one SAE), PAYLOAD_TOO_LARGE,
                VALIDATION_ERROR, INVALID_FEATURE_INDEX.
        """
        row, d_sae = await self._one(sae_id)
        parsed = await self._reader.run(rules.read, body, d_sae, is_lines=is_lines)
        return await self._put(row, parsed, replace=replace)

    async def _put(
        self, row: SaeRow, parsed: rules.ParsedLabels, *, replace: bool
    ) -> ImportedLabels:
        sae_id = row.id
        await self._labels.put(sae_id, parsed.by_feature, replace=replace)
        warnings = []
        if parsed.repeated:
            warnings.append(f"{parsed.repeated} further labels of the same features were left out")
        if row.trained_layer is not None and parsed.layers - {row.trained_layer}:
            layers = ", ".join(str(layer) for layer in sorted(parsed.layers))
            warnings.append(f"the labels name layer {layers}, the SAE layer {row.trained_layer}")
        total = len(await self._labels.labels_of(sae_id))
        return ImportedLabels(sae_id, len(parsed.by_feature), total, warnings)

    async def clear_labels(self, sae_id: str) -> int:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        row = await self._saes.get(sae_id)
        return await self._labels.forget(row.id)

    async def clear_label(self, sae_id: str, index: int) -> int:
        """Delete the label of one feature, and return 1, or 0 where the feature had none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
        """
        row, d_sae = await self._one(sae_id)
        check_index(index, d_sae)
        return await self._labels.forget(row.id, index)

    # ------------------------------------------------------------- features

    async def get(self, sae_id: str, index: int, tokens: int = promoting.SHOWN) -> FeatureDetails:
        """Raises:
        Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE, INVALID_FEATURE_INDEX, SAE_LOAD_FAILED, INVALID_LOCAL_PATH.
        """
        row, d_sae = await self._one(sae_id)
        sae_id = row.id
        check_index(index, d_sae)
        attached = self._attached(sae_id)
        explored = await self._explore(row, attached, [index], 0)
        label = (await self._labels.labels_of(sae_id)).get(index)
        counted = await self._statistics(attached.key, index) if attached else None
        facts = explored.features[0]
        promotes, suppresses = None, None
        if attached is not None and (effects := await self.effects(attached, [index], tokens)):
            promotes, suppresses = effects[0]
        norm = attached.check.get("residual_norm") if attached else None
        return FeatureDetails(
            sae_id=sae_id,
            feature_idx=facts.feature_idx,
            label=label,
            decoder_norm=facts.decoder_norm,
            encoder_norm=facts.encoder_norm,
            encoder_bias=facts.encoder_bias,
            threshold=facts.threshold,
            layer=attached.layer if attached else None,
            residual_norm=norm,
            typical_strength=None
            if norm is None
            else monitoring.typical_strength(norm, facts.decoder_norm),
            statistics=None if counted is None else figures(counted),
            promotes=promotes,
            suppresses=suppresses,
            corpora=await self._corpora.of_feature(sae_id, attached, index),
        )

    async def effects(self, attached: Attachment, features: Sequence[int], top: int) -> list[Sides]:
        """For each of these features, the `top` tokens that it promotes most and those that it suppresses most. Empty
        for an SAE that does not write into the residual stream, and for a model whose unembedding is not known.

        Raises:
            Refusal: MODEL_NOT_LOADED, SAE_NOT_ATTACHED, ENGINE_UNAVAILABLE.
        """
        if attached.site not in STREAM_SITES:
            return []
        engine, _ = self._conductor.loaded().running()
        try:
            return await promoted(
                engine,
                len(features),
                lambda done: m.Promote(
                    key=attached.key, features=list(features[done:]), top=top, is_spelled=True
                ),
            )
        except Refusal as refusal:
            if refusal.code != "SAE_INCOMPATIBLE":
                raise
            return []

    async def tokens_of(
        self, vector: str, directions: Sequence[Direction], top: int
    ) -> list[DirectionTokens]:
        """For each of these directions of the vector with this name, the `top` tokens that it promotes most and those
        that it suppresses most.

        Raises:
            Refusal: MODEL_NOT_LOADED; VECTOR_MISMATCH for a vector that does not fit the loaded model; SAE_INCOMPATIBLE
                for an architecture whose unembedding is not known; INVALID_PARAMETER for a GGUF model, and one that can
                only embed.
        """
        resident = self._conductor.loaded()
        check_layered(resident.row)
        engine, facts = resident.running()
        check_fits(vector, directions, facts.layers, facts.site_widths)
        asked = [one.data for one in directions if one.site in STREAM_SITES]
        found = await promoted(
            engine,
            len(asked),
            lambda done: m.Promote(
                directions=b"".join(asked[done : done + DIRECTIONS_AT_ONCE]),
                top=top,
                is_spelled=True,
            ),
        )
        sides = iter(found)
        return [
            DirectionTokens(
                one.layer, one.site, *(next(sides) if one.site in STREAM_SITES else (None, None))
            )
            for one in directions
        ]

    async def search(
        self, sae_id: str, query: str | None, index: int | None, limit: int
    ) -> FeatureSearch:
        """Search for features by the words of `query` in their labels, by how near their decoder directions are to that
        of the feature `index`, or by both. Returns the best `limit` features; a search by both looks only at the
        NEAREST_MAXIMUM nearest features.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE, INVALID_FEATURE_INDEX, SAE_LOAD_FAILED, INVALID_LOCAL_PATH.
        """
        row, d_sae = await self._one(sae_id)
        sae_id = row.id
        labels = await self._labels.labels_of(sae_id)
        if index is None:
            matched = await asyncio.to_thread(_matching, labels, query)
            best = [SimilarFeature(i, label, None) for i, label in matched[:limit]]
            return FeatureSearch(sae_id, query, index, best, len(matched))
        check_index(index, d_sae)
        count = min(d_sae - 1, limit if query is None else NEAREST_MAXIMUM)
        explored = await self._explore(row, self._attached(sae_id), [index], count)
        near = [SimilarFeature(i, labels.get(i), cosine) for i, cosine in explored.nearest]
        if query is not None:
            words = rules.words_of(query)
            near = [one for one in near if one.label and rules.has_words(one.label, words)]
        return FeatureSearch(sae_id, query, index, near[:limit], len(near))

    async def peaking(self, sae_id: str, query: str, limit: int) -> FeatureSearch:
        """Search for features with an example in the newest corpus that peaks inside a word with the query in it. The
        largest peak in units of the feature's own maximum comes first.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE; INVALID_PARAMETER without a corpus.
        """
        sae_id = await self.own_id(sae_id)
        found = await self._corpora.peaking(sae_id, self._attached(sae_id), query.strip())
        labels = await self.labels(sae_id)
        best = [
            SimilarFeature(index, labels.get(index), None, value, share)
            for index, value, share in found[:limit]
        ]
        return FeatureSearch(sae_id, query, None, best, len(found))

    async def examples(self, sae_id: str, features: Iterable[int]) -> dict[int, FeatureExample]:
        """The strongest example of each of these features of an SAE that the newest corpus has."""
        return await self._corpora.examples(sae_id, self._attached(sae_id), features)

    async def with_examples(self, found: FeatureSearch) -> FeatureSearch:
        """The same features, each with its example."""
        examples = await self.examples(found.sae_id, (one.feature_idx for one in found.features))
        features = [
            structs.replace(one, example=examples.get(one.feature_idx)) for one in found.features
        ]
        return structs.replace(found, features=features)

    # ------------------------------------------------------------- inside

    async def own_id(self, sae_id: str) -> str:
        """The own id of the SAE that this id names.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE (a record that is not one SAE).
        """
        row, _ = await self._one(sae_id)
        return row.id

    async def _one(self, sae_id: str) -> tuple[SaeRow, int]:
        """Raises:
        Refusal: SAE_NOT_FOUND, SAE_INCOMPATIBLE.
        """
        row = await self._saes.get(sae_id)
        if row.d_sae is None:
            raise Refusal(
                "SAE_INCOMPATIBLE",
                "the record is not one SAE that has been read: nothing is known of its features",
                sae_id=sae_id,
                status=row.status,
            )
        return row, row.d_sae

    def _attached(self, sae_id: str) -> Attachment | None:
        return next((a for a in self._conductor.attachments() if a.sae_id == sae_id), None)

    async def _explore(
        self, row: SaeRow, attached: Attachment | None, features: Sequence[int], nearest: int
    ) -> m.Explored:
        if attached is not None:
            engine, _ = self._conductor.loaded().running()
            return await engine.ask(
                m.Explore(key=attached.key, features=list(features), nearest=nearest)
            )
        check_files(row.id, row.status, row.error_message, "read")
        async with self._reading:
            await asyncio.to_thread(local.resolve_either, row.local_path or "")
            reader = await self._launcher.launch()
            try:
                async with asyncio.timeout(READ_SECONDS):
                    return await reader.ask(
                        m.Explore(source=source_of(row), features=list(features), nearest=nearest)
                    )
            except TimeoutError:
                reason = f"the SAE cannot be read within {READ_SECONDS:.0f} seconds"
                raise Refusal("SAE_LOAD_FAILED", reason, sae_id=row.id) from None
            except Refusal as refusal:
                if refusal.code != "ENGINE_UNAVAILABLE":
                    raise
                reason = "the process that read the SAE ended"
                raise Refusal("SAE_LOAD_FAILED", reason, sae_id=row.id) from None
            finally:
                await reader.stop()


async def promoted(engine: Engine, count: int, question: Callable[[int], m.Promote]) -> list[Sides]:
    """What an engine answers about `count` directions. `question` asks about those after the first ones, as many as it
    is called with."""
    found: list[Sides] = []
    while len(found) < count:
        answer = await engine.ask(question(len(found)))
        sides = promoting.unpacked(answer.tokens, answer.values, answer.top)
        found += [(_effects(up, answer.texts), _effects(down, answer.texts)) for up, down in sides]
    return found


def _effects(effects: promoting.Effects, texts: Mapping[int, str]) -> list[TokenEffect]:
    return [TokenEffect(token, texts.get(token, ""), value) for token, value in effects]


def _matching(labels: Mapping[int, str], query: str | None) -> list[tuple[int, str]]:
    if not query:
        return list(labels.items())
    words = rules.words_of(query)
    return [(index, label) for index, label in labels.items() if rules.has_words(label, words)]
