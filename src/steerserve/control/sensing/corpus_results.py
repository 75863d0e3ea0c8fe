"""What corpora say about the features of SAEs, and the form in which contexts and results are stored."""

from __future__ import annotations

import asyncio
import lzma
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, content_keys
from steerserve.control.saes.views import CorpusCheck
from steerserve.control.sensing.corpus_views import (
    CorpusStatistics,
    ExampleToken,
    FeatureExample,
)
from steerserve.database.corpora import CorpusRow, CorpusStore, ReadSae
from steerserve.errors import Refusal
from steerserve.rules.sensing.corpus import FeatureSummary
from steerserve.rules.sensing.ranking import Scales

Kind = TypeVar("Kind")

PART = 64
"""The contexts of one part of a corpus."""


class Context(msgspec.Struct, frozen=True, array_like=True):
    """Some tokens of the text `text`, from its token `start` on, behind `skip` special tokens. `pieces` are the texts
    of all of them."""

    text: int
    start: int
    skip: int
    pieces: list[str]


class StoredExample(msgspec.Struct, frozen=True, array_like=True):
    """The largest activation of a feature in the context with this number, counted over all parts; the window around it
    begins at `first`, and `inside` has the activations in it by their position in the context."""

    context: int
    position: int
    value: float
    is_strongest: bool
    first: int
    end: int
    inside: dict[int, float]


class StoredFeature(msgspec.Struct, frozen=True, array_like=True):
    """The result of one feature."""

    summary: FeatureSummary
    examples: list[StoredExample]


class StoredSae(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one SAE in a file. `name` is the name of its folder. The other fields are those of a `ReadSae`,
    and the results of each feature that fires."""

    name: str
    key: str
    layer: int
    site: str
    d_sae: int
    maxima: bytes
    counts: bytes
    features: dict[int, StoredFeature]


class StoredCorpus(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a corpus in a file: its record, its contexts, and its SAEs. A file is read where the same SAEs are
    in the same model, and nothing is computed again."""

    name: str
    asked: dict[str, Any]
    digest: str
    texts: int
    tokens: int
    counted: int
    contexts: list[Context]
    saes: list[StoredSae]


def file_of(corpus: StoredCorpus) -> bytes:
    """The content of a file with these results."""
    return lzma.compress(msgspec.msgpack.encode(corpus), preset=lzma.PRESET_EXTREME | 9)


def corpus_of(file: bytes) -> StoredCorpus:
    """The results in a file that `file_of` made."""
    return msgspec.msgpack.decode(lzma.decompress(file), type=StoredCorpus)


def packed(value: object) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(value), 1)


def unpacked(data: bytes, kind: type[Kind]) -> Kind:
    return msgspec.msgpack.decode(zlib.decompress(data), type=kind)


class CorpusResults:
    """Reads results. The maxima and counts of all features are kept in memory."""

    def __init__(self, store: CorpusStore, conductor: Conductor) -> None:
        self._store = store
        self._conductor = conductor
        self._held: list[tuple[CorpusRow, ReadSae]] | None = None
        self._scales: dict[tuple[str, ...], Scales | None] = {}
        self._fired: dict[tuple[str, int], tuple[int, int]] = {}

    def forget(self) -> None:
        """The corpora have changed."""
        self._held = None
        self._scales = {}
        self._fired = {}

    async def over_largest(self, attached: Sequence[Attachment]) -> list[CorpusCheck | None] | None:
        """How the features of each of these attached SAEs fired over the largest corpus that was read of it, in this
        model and at its scale; None for one of which none was read. None for all where the database cannot be used, or
        the model has gone."""
        try:
            read = await self._all()
            resident = self._conductor.loaded()
        except Refusal:
            return None
        found: list[CorpusCheck | None] = []
        for one in attached:
            keys = content_keys(resident, one)
            fitting = [(row, sae) for row, sae in read if sae.key in keys]
            found.append(self._over(*max(fitting, key=_tokens), one.k) if fitting else None)
        return found

    async def of_feature(
        self, sae_id: str, attached: Attachment | None, index: int
    ) -> list[CorpusStatistics]:
        """What each corpus says about a feature: of an attached SAE those that were read of the same content in the
        same model, of another one all.

        Raises:
            Refusal: DATABASE_UNAVAILABLE, MODEL_NOT_LOADED.
        """
        keys = None if attached is None else content_keys(self._conductor.loaded(), attached)
        found = []
        for row, sae in await self._all():
            if sae.sae_id == sae_id if keys is None else sae.key in keys:
                found.append(await self._statistics(row, sae, index))
        return found

    async def largest(self, attached: Attachment, index: int) -> float | None:
        """The largest activation of a feature over all corpora; None where it is not known.

        Raises:
            Refusal: DATABASE_UNAVAILABLE, MODEL_NOT_LOADED.
        """
        scales = await self.scales(attached)
        return scales.maxima[index] or None if scales is not None else None

    async def scales(self, attached: Attachment) -> Scales | None:
        """What is known of all features of an SAE; None without a corpus.

        Raises:
            Refusal: DATABASE_UNAVAILABLE, MODEL_NOT_LOADED.
        """
        keys = content_keys(self._conductor.loaded(), attached)
        if keys not in self._scales:
            self._scales[keys] = _scales([one for one in await self._all() if one[1].key in keys])
        return self._scales[keys]

    # ------------------------------------------------------------- inside

    async def _all(self) -> list[tuple[CorpusRow, ReadSae]]:
        if self._held is None:
            self._held = await self._store.results()
        return self._held

    def _over(self, row: CorpusRow, sae: ReadSae, k: int | None) -> CorpusCheck:
        at = (row.id, sae.number)
        if at not in self._fired:
            counts = array("I", sae.counts)
            self._fired[at] = sum(counts), counts.count(0)
        firings, never = self._fired[at]
        return CorpusCheck(
            corpus_id=row.id,
            name=row.name,
            tokens=row.counted,
            features_fired=sae.d_sae - never,
            never_fired=never,
            l0=firings / row.counted if k is None else None,
        )

    async def _statistics(self, row: CorpusRow, sae: ReadSae, index: int) -> CorpusStatistics:
        data = await self._store.feature(row.id, sae.number, index)
        if data is None:
            return CorpusStatistics(
                corpus_id=row.id,
                name=row.name,
                tokens=row.counted,
                density=0.0,
                max=None,
                quantiles={},
                histogram=None,
                examples=[],
            )
        stored: StoredFeature = unpacked(data, StoredFeature)
        return CorpusStatistics(
            corpus_id=row.id,
            name=row.name,
            tokens=row.counted,
            density=stored.summary.count / row.counted,
            max=stored.summary.max,
            quantiles=stored.summary.quantiles,
            histogram=stored.summary.histogram,
            examples=await self._examples(row.id, stored.examples),
        )

    async def _examples(
        self, corpus_id: str, examples: Sequence[StoredExample]
    ) -> list[FeatureExample]:
        numbers = sorted({one.context // PART for one in examples})
        return await asyncio.to_thread(
            _examples, await self._store.contexts(corpus_id, numbers), examples
        )


def _examples(
    stored: Mapping[int, bytes], examples: Sequence[StoredExample]
) -> list[FeatureExample]:
    """The examples, whose contexts are in these parts."""
    parts = {number: unpacked(data, list[Context]) for number, data in stored.items()}
    return [_example(parts[one.context // PART][one.context % PART], one) for one in examples]


def _example(context: Context, stored: StoredExample) -> FeatureExample:
    pieces = context.pieces[stored.first : stored.end]
    return FeatureExample(
        text_index=context.text,
        position=context.start + stored.position - context.skip,
        value=stored.value,
        is_strongest=stored.is_strongest,
        at=stored.position - stored.first,
        tokens=[
            ExampleToken(piece, stored.inside.get(at, 0.0))
            for at, piece in enumerate(pieces, stored.first)
        ],
    )


def _tokens(result: tuple[CorpusRow, ReadSae]) -> int:
    return result[0].counted


def _scales(results: Sequence[tuple[CorpusRow, ReadSae]]) -> Scales | None:
    if not results:
        return None
    by_corpus = [array("f", sae.maxima) for _, sae in results]
    largest, sae = max(results, key=_tokens)
    return Scales(
        array("f", map(max, *by_corpus) if len(by_corpus) > 1 else by_corpus[0]),
        array("I", sae.counts),
        largest.counted,
    )
