"""The results of a corpus that was read: what is known of each feature, from the activations of all parts."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable

from steerserve.control.sensing.corpus_results import (
    PART,
    Context,
    StoredExample,
    StoredFeature,
    packed,
    unpacked,
)
from steerserve.control.threads import Threads
from steerserve.nouns.corpora import rules
from steerserve.nouns.corpora.rules import FeatureSummary, Gathered, Groups
from steerserve.nouns.corpora.store import CorpusRow, CorpusStore, ReadSae

Chosen = dict[int, list[tuple[int, int, bool]]]
"""Number of a context -> its examples: a feature, the place among the examples of the feature, and whether it is one of
the strongest."""


class Summary:
    """Computes the results of one corpus, a range of features at a time, and writes them. What a thread does at once is
    the work on one part."""

    def __init__(self, store: CorpusStore, row: CorpusRow, examples: int, threads: Threads) -> None:
        self._store = store
        self._row = row
        self._examples = examples
        self._threads = threads

    async def make(self, told: Callable[[float], None]) -> None:
        """Raises:
        Refusal: CORPORA_FULL, INSUFFICIENT_DISK; CORPUS_NOT_FOUND for a corpus that was deleted meanwhile.
        """
        await self._store.clear_features(self._row.id)
        saes = await self._store.saes(self._row.id)
        results = {}
        for sae in saes:
            counts = await self._counts(sae)
            maxima = array("f", bytes(4 * sae.d_sae))
            ranges = rules.ranges(counts)
            for number, features in enumerate(ranges):
                await self._range(sae, features, maxima)
                told((sae.number + (number + 1) / len(ranges)) / len(saes))
            results[sae.number] = maxima.tobytes(), counts.tobytes()
        await self._store.finish(self._row.id, results)

    # ------------------------------------------------------------- inside

    async def _part(self, sae: ReadSae, number: int) -> list[Groups]:
        data = await self._store.activations(self._row.id, number, sae.number)
        return await self._threads.run(_groups, data)

    async def _counts(self, sae: ReadSae) -> array[int]:
        """At how many tokens each feature fires."""
        counts = array("I", bytes(4 * sae.d_sae))

        def add(part: list[Groups]) -> None:
            for one in part:
                for at, feature in enumerate(one.features):
                    counts[feature] += one.starts[at + 1] - one.starts[at]

        for number in range(self._row.parts):
            await self._threads.run(add, await self._part(sae, number))
        return counts

    async def _range(self, sae: ReadSae, features: range, maxima: array[float]) -> None:
        gathered: dict[int, Gathered] = {}

        def gather(part: list[Groups], first: int) -> None:
            for place, one in enumerate(part):
                rules.gather(gathered, one, features, first + place)

        for number in range(self._row.parts):
            await self._threads.run(gather, await self._part(sae, number), number * PART)
        summaries, chosen = await self._threads.run(self._summarised, gathered)
        for feature, found in summaries.items():
            maxima[feature] = found.max
        gathered.clear()
        examples = await self._windows(sae, chosen)
        results = await self._threads.run(_encoded, summaries, examples)
        await self._store.add_features(self._row.id, sae.number, results)

    def _summarised(
        self, gathered: dict[int, Gathered]
    ) -> tuple[dict[int, FeatureSummary], Chosen]:
        chosen: Chosen = defaultdict(list)
        summaries = {}
        for feature, one in gathered.items():
            summaries[feature] = rules.summary(one.values)
            listed = rules.chosen(one.largest, one.contexts, self._examples)
            for place, (context, is_strongest) in enumerate(listed):
                chosen[context].append((feature, place, is_strongest))
        return summaries, chosen

    async def _windows(self, sae: ReadSae, chosen: Chosen) -> dict[int, dict[int, StoredExample]]:
        """The examples of each feature by their places."""
        examples: dict[int, dict[int, StoredExample]] = defaultdict(dict)

        def cut(part: list[Groups], contexts: bytes, number: int) -> None:
            held: list[Context] = unpacked(contexts, list[Context])
            for place, (groups, context) in enumerate(zip(part, held, strict=True)):
                at = number * PART + place
                for feature, order, is_strongest in chosen.get(at, ()):
                    examples[feature][order] = _example(
                        groups, feature, at, len(context.pieces), is_strongest=is_strongest
                    )

        for number in sorted({context // PART for context in chosen}):
            contexts = await self._store.contexts(self._row.id, [number])
            part = await self._part(sae, number)
            await self._threads.run(cut, part, contexts[number], number)
        return examples


def _groups(data: bytes) -> list[Groups]:
    parts: list[tuple[bytes, bytes, bytes, bytes]] = unpacked(
        data, list[tuple[bytes, bytes, bytes, bytes]]
    )
    return [rules.groups(*one) for one in parts]


def _example(
    groups: Groups, feature: int, context: int, size: int, *, is_strongest: bool
) -> StoredExample:
    position, value, first, inside = rules.window(groups, feature, size)
    end = min(size, position + rules.AFTER + 1)
    return StoredExample(context, position, value, is_strongest, first, end, inside)


def _encoded(
    summaries: dict[int, FeatureSummary], examples: dict[int, dict[int, StoredExample]]
) -> dict[int, bytes]:
    return {
        feature: packed(StoredFeature(found, [one for _, one in sorted(examples[feature].items())]))
        for feature, found in summaries.items()
    }
