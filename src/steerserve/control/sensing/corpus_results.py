"""What corpora say about the features of SAEs, and the form in which contexts and results are stored."""

from __future__ import annotations

import asyncio
import lzma
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, content_keys
from steerserve.control.saes.example_views import ExampleToken, FeatureExample
from steerserve.errors import Refusal
from steerserve.nouns.corpora.form import CorpusStatistics
from steerserve.nouns.corpora.rules import FeatureSummary
from steerserve.nouns.corpora.store import CorpusRow, CorpusStore, ReadSae, unknown_corpus
from steerserve.nouns.saes.form import CorpusCheck
from steerserve.rules.sensing.ranking import Scales

Kind = TypeVar("Kind")

PART = 64
"""The contexts of one part of a corpus."""
FEATURES_AT_ONCE = 512
"""The features whose examples are decoded at once."""
WORD_TOKENS = 8
"""The most tokens on each side of a peak that belong to its word."""


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
        self.store = store
        self._conductor = conductor
        self._held: list[tuple[CorpusRow, ReadSae]] | None = None
        self._scales: dict[tuple[str, ...], Scales | None] = {}
        self._fired: dict[tuple[str, int], tuple[int, int]] = {}
        self._peaks: dict[tuple[str, int], Peaks] = {}
        self._peaks_lock = asyncio.Lock()

    def forget(self) -> None:
        """The corpora have changed."""
        self._held = None
        self._scales = {}
        self._fired = {}
        self._peaks = {}

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
        return [
            await self._statistics(row, sae, index)
            for row, sae in await self._read_of(sae_id, attached)
        ]

    async def examples(
        self, sae_id: str, attached: Attachment | None, features: Iterable[int]
    ) -> dict[int, FeatureExample]:
        """The strongest example of each of these features that fires in the newest corpus of an SAE; empty without a
        corpus.

        Raises:
            Refusal: DATABASE_UNAVAILABLE, MODEL_NOT_LOADED.
        """
        read = await self._read_of(sae_id, attached)
        if not read:
            return {}
        row, sae = read[-1]
        stored = await self.store.features(row.id, sae.number, sorted(set(features)))
        strongest = await asyncio.to_thread(_strongest, stored)
        found = await self._examples(row.id, list(strongest.values()))
        return dict(zip(strongest, found, strict=True))

    async def peaking(
        self, sae_id: str, attached: Attachment | None, query: str
    ) -> list[tuple[int, float, float]]:
        """The features with an example in the newest corpus of an SAE that peaks inside a word with `query` in it, in
        capitals or not: of each its index, the largest such peak, and the peak over its largest activation there. The
        largest share comes first. The words of all peaks are read once.

        Raises:
            Refusal: INVALID_PARAMETER without a corpus; CORPUS_NOT_FOUND for one that is deleted meanwhile;
                DATABASE_UNAVAILABLE, MODEL_NOT_LOADED.
        """
        read = await self._read_of(sae_id, attached)
        if not read:
            why = "by: no corpus was read of this SAE; read one at /api/corpora, or search by text"
            raise Refusal("INVALID_PARAMETER", why, param="by")
        row, sae = read[-1]
        async with self._peaks_lock:
            peaks = self._peaks.get((row.id, sae.number))
            if peaks is None:
                peaks = await self._peaks_of(row, sae)
                self._peaks = {(row.id, sae.number): peaks}
        return await asyncio.to_thread(peaks.matching, query, array("f", sae.maxima))

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

    async def _read_of(
        self, sae_id: str, attached: Attachment | None
    ) -> list[tuple[CorpusRow, ReadSae]]:
        """The corpora that were read of an SAE, the oldest first: of an attached one those of the same content in the
        same model."""
        keys = None if attached is None else content_keys(self._conductor.loaded(), attached)
        return [
            (row, sae)
            for row, sae in await self._all()
            if (sae.sae_id == sae_id if keys is None else sae.key in keys)
        ]

    async def _peaks_of(self, row: CorpusRow, sae: ReadSae) -> Peaks:
        """The words of all examples of all features, some features and then some contexts at a time."""
        peaks = Peaks()
        for first in range(0, sae.d_sae, FEATURES_AT_ONCE):
            some = range(first, min(first + FEATURES_AT_ONCE, sae.d_sae))
            stored = await self.store.features(row.id, sae.number, some)
            await asyncio.to_thread(peaks.add, stored)
        for number in sorted(peaks.waiting):
            contexts = await self.store.contexts(row.id, [number])
            if number not in contexts:
                raise unknown_corpus(row.id)  # it was deleted meanwhile
            await asyncio.to_thread(peaks.read, number, contexts[number])
        return peaks

    async def _all(self) -> list[tuple[CorpusRow, ReadSae]]:
        if self._held is None:
            self._held = await self.store.results()
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
        data = await self.store.feature(row.id, sae.number, index)
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
            _examples, await self.store.contexts(corpus_id, numbers), examples
        )


class Peaks:
    """The words at which the examples of features peak. `waiting` has by the number of a part of the corpus the
    examples whose words are not read yet, as [feature, value, context in the part, position]."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[tuple[int, float, int, int]]] = {}
        self._words: dict[str, int] = {}
        self._features, self._at = array("I"), array("I")
        self._values = array("f")

    def add(self, stored: Mapping[int, bytes]) -> None:
        """Take the examples of some features, whose words are not known yet."""
        for feature, data in stored.items():
            for one in unpacked(data, StoredFeature).examples:
                number, place = divmod(one.context, PART)
                waits = self.waiting.setdefault(number, [])
                waits.append((feature, one.value, place, one.position))

    def read(self, number: int, data: bytes) -> None:
        """Read the words of the examples in one part of the corpus."""
        contexts = unpacked(data, list[Context])
        for feature, value, place, position in self.waiting.pop(number):
            word = _word(contexts[place].pieces, position)
            self._features.append(feature)
            self._values.append(value)
            self._at.append(self._words.setdefault(word, len(self._words)))

    def matching(self, query: str, maxima: Sequence[float]) -> list[tuple[int, float, float]]:
        """The features that peak inside a word with the query in it, as `CorpusResults.peaking` answers them."""
        wanted = query.casefold()
        words = {number for word, number in self._words.items() if wanted in word}
        largest: dict[int, float] = {}
        for feature, value, at in zip(self._features, self._values, self._at, strict=True):
            if at in words:
                largest[feature] = max(value, largest.get(feature, 0.0))
        found = [
            (feature, value, min(1.0, value / maxima[feature]) if maxima[feature] else 1.0)
            for feature, value in largest.items()
        ]
        return sorted(found, key=lambda one: (-one[2], -one[1], one[0]))


def _word(pieces: Sequence[str], position: int) -> str:
    """The word that the token at this position is a part of, without capitals. A token that begins with a blank begins
    a word."""
    first, end = position, position + 1
    while first > max(0, position - WORD_TOKENS) and not pieces[first][:1].isspace():
        first -= 1
    while end < min(len(pieces), position + WORD_TOKENS) and not pieces[end][:1].isspace():
        end += 1
    return "".join(pieces[first:end]).strip().casefold()


def _strongest(stored: Mapping[int, bytes]) -> dict[int, StoredExample]:
    """The example with the largest activation of each feature that has one."""
    found = {}
    for feature, data in stored.items():
        examples = unpacked(data, StoredFeature).examples
        if examples:
            found[feature] = max(examples, key=lambda one: one.value)
    return found


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
