"""Labels of features that a language model suggests: an endpoint of somebody else, or the resident model itself.

The examples of a feature come from texts in the request, or from the corpora that were read.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from steerserve import messages as m
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.texts import NamedText, TextReader, of_kind, prompt_of
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import ServedModels
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, check_held
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.hub.chats import ChatEndpoints
from steerserve.messages.spelling import Spell
from steerserve.nouns.corpora import rules as corpus
from steerserve.nouns.features.owner import Features
from steerserve.nouns.labels.store import Labels
from steerserve.nouns.suggestions import rules
from steerserve.nouns.suggestions.form import (
    AcceptedLabels,
    SuggestedLabel,
    SuggestedLabels,
    SuggestionList,
)
from steerserve.nouns.suggestions.rules import FeatureText
from steerserve.nouns.suggestions.store import SuggestionRow, SuggestionStore
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.inference.prompts import message
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering.live import check_index
from steerserve.settings import Settings

KIND = "label_suggestions"
PROMOTED_SHOWN = 10
READ_SHARE = 0.3
"""The share of the progress of a job that is the reading of the texts in its request."""

Ask = Callable[[str, int], Awaitable[str]]
"""(text, most tokens) -> the answer of a language model."""
Evidence = Callable[[int], Awaitable[tuple[list[FeatureText], list[str]]]]
"""Index of a feature -> the texts in which it fires, and random other ones."""


@dataclass(frozen=True, slots=True)
class AskedEndpoint:
    """An endpoint with the model that is asked there, and the variable with its key."""

    base_url: str
    model: str
    api_key_env: str | None


@dataclass(frozen=True, slots=True)
class SuggestionRequest:
    """The features that need labels. `endpoint` is None for the resident model. `examples` is the number of texts that
    it sees of each feature; they are among `texts`, or without any among the examples of the corpora."""

    sae_id: str
    features: tuple[int, ...]
    endpoint: AskedEndpoint | None
    examples: int
    texts: tuple[str, ...]
    seed: int


class Suggestions:
    """Starts the jobs that suggest labels, and makes labels of what they have suggested."""

    def __init__(
        self,
        settings: Settings,
        store: SuggestionStore,
        labels: Labels,
        features: Features,
        corpora: CorpusResults,
        reader: TextReader,
        generation: Generation,
        served: ServedModels,
        conductor: Conductor,
        jobs: Jobs,
    ) -> None:
        self._settings = settings
        self._store = store
        self._labels = labels
        self._features = features
        self._corpora = corpora
        self._reader = reader
        self._generation = generation
        self._served = served
        self._conductor = conductor
        self._jobs = jobs
        self._endpoints = ChatEndpoints(settings)

    async def start(self, asked: SuggestionRequest) -> Job:
        """Begin to suggest labels. The job fails with LABEL_ENDPOINT_FAILED where the endpoint does not answer, and
        with MODEL_NOT_LOADED or SAE_NOT_ATTACHED when the model or the SAE goes meanwhile.

        Raises:
            Refusal: SAE_NOT_FOUND, MODEL_NOT_LOADED, SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, LABEL_ENDPOINT_REFUSED,
                LABEL_ENDPOINT_FAILED, TOO_MANY_JOBS.
        """
        await self._features.own_id(asked.sae_id)
        resident = self._conductor.loaded()
        choice = SaeChoice(asked.sae_id, None)
        attached = choice.first(list(resident.attachments.values()))
        for index in asked.features:
            check_index(index, attached.d_sae)
        if (endpoint := asked.endpoint) is not None:
            await self._endpoints.open(endpoint.base_url, endpoint.api_key_env).close()
        return self._jobs.start(KIND, partial(self._run, asked, resident, attached))

    async def suggested(self, sae_id: str) -> SuggestionList:
        """The suggestions that are kept for an SAE.

        Raises:
            Refusal: SAE_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        sae_id = await self._features.own_id(sae_id)
        return SuggestionList(sae_id, [_suggested(row) for row in await self._store.all(sae_id)])

    async def accept(self, sae_id: str, features: Sequence[int]) -> AcceptedLabels:
        """Make labels of suggestions. A label that was not made of a suggestion is left as it is.

        Raises:
            Refusal: SAE_NOT_FOUND; VALIDATION_ERROR for a feature without a suggestion; DATABASE_UNAVAILABLE.
        """
        sae_id = await self._features.own_id(sae_id)
        rows = {row.feature_idx: row for row in await self._store.all(sae_id, features)}
        for place, index in enumerate(features):
            if index not in rows:
                why, where = f"no label is suggested for feature {index}", f"features[{place}]"
                raise refuse_value(["body", where], why, param=where)
        made = await self._labels.put_over(
            sae_id,
            {index: row.label for index, row in rows.items()},
            {index: row.accepted for index, row in rows.items()},
        )
        await self._store.accept(sae_id, [(index, rows[index].label) for index in made])
        return AcceptedLabels(sae_id, made, sorted(rows.keys() - set(made)))

    # ------------------------------------------------------------- inside

    async def _run(
        self, asked: SuggestionRequest, resident: Resident, attached: Attachment, report: Report
    ) -> SuggestedLabels:
        suggestions: list[SuggestedLabel] = []
        unlabelled: list[int] = []
        without: list[int] = []
        count = len(asked.features)
        begun = READ_SHARE if asked.texts else 0.0
        async with AsyncExitStack() as stack:
            model, ask = self._asked(asked, resident, stack)
            evidence = await self._evidence(asked, resident, attached, report)
            for done, index in enumerate(asked.features):
                check_held(resident, [attached])
                report(begun + (1 - begun) * done / count, f"{done} of {count} features are done")
                examples, others = await evidence(index)
                if not examples:
                    without.append(index)
                    continue
                row = await self._suggest(asked, attached, index, model, ask, examples, others)
                if row is None:
                    unlabelled.append(index)
                else:
                    suggestions.append(row)
        return SuggestedLabels(
            sae_id=attached.sae_id,
            layer=attached.layer,
            suggestions=suggestions,
            without_examples=without,
            without_label=unlabelled,
        )

    async def _suggest(
        self,
        asked: SuggestionRequest,
        attached: Attachment,
        index: int,
        model: str,
        ask: Ask,
        examples: Sequence[FeatureText],
        others: Sequence[str],
    ) -> SuggestedLabel | None:
        """The suggestion for one feature, which is stored; None where the answer has no label."""
        shown, held_out = rules.split(examples, asked.examples)
        effects = await self._features.effects(attached, [index], PROMOTED_SHOWN)
        promoted = [effect.token for up, _ in effects for effect in up]
        label = rules.label_of(await ask(rules.naming(shown, promoted), rules.LABEL_TOKENS))
        if label is None:
            return None
        score = None
        texts, truth = rules.mixed(held_out, others, asked.seed)
        if len(set(truth)) == 2:
            answer = await ask(rules.detecting(label, texts), rules.DETECTION_TOKENS)
            score = rules.balanced_accuracy(answer, truth)
        version = rules.PROMPT_VERSION
        created = await self._store.put(attached.sae_id, index, label, model, score, version)
        row = SuggestionRow(index, label, model, score, version, created, None)
        return _suggested(row)

    def _asked(
        self, asked: SuggestionRequest, resident: Resident, stack: AsyncExitStack
    ) -> tuple[str, Ask]:
        """The name of the model that is asked, and how."""
        endpoint = asked.endpoint
        if endpoint is None:
            return resident.row.name, partial(self._ask_resident, resident)
        opened = self._endpoints.open(endpoint.base_url, endpoint.api_key_env)
        stack.push_async_callback(opened.close)
        return endpoint.model, partial(opened.ask, endpoint.model)

    async def _ask_resident(self, resident: Resident, text: str, most: int) -> str:
        """The unsteered answer of the resident model, as a chat where it has a template."""
        _, facts = resident.running()
        prompt = prompt_of(f"{text}\n\n", KIND)
        if facts.chat_template is not None:
            prompt = prompt_of((message("user", text, None),), KIND)
        sampling = m.Sampling(temperature=0.0, max_tokens=most)
        asked = Asked(
            request=m.Request(goal=m.Generate(sampling=sampling), prompts=[prompt], client=KIND),
            steering=AskedSteering(intensity=0.0),
            may_load=False,
        )
        written = []
        model = await self._served.served_model(resident.row)
        async with self._generation.open(asked, model) as run:
            async for event in run.events:
                if isinstance(event, m.Piece):
                    written.append(event.text)
        return "".join(written)

    async def _evidence(
        self, asked: SuggestionRequest, resident: Resident, attached: Attachment, report: Report
    ) -> Evidence:
        if not asked.texts:
            return partial(self._of_corpora, asked, attached)
        engine, _ = resident.running()
        longest = self._settings.tokenize_max_characters
        spelled, special = [], []
        for text in asked.texts:
            whole, bare = [
                await engine.ask(Spell(prompt=m.Text(text, has_special), longest=longest))
                for has_special in (True, False)
            ]
            is_behind = whole.ids[-len(bare.ids) :] == bare.ids
            spelled.append(whole)
            special.append(len(whole.ids) - len(bare.ids) if is_behind else 0)
        texts = [
            NamedText(f"texts[{place}]", m.Tokens(one.ids)) for place, one in enumerate(spelled)
        ]
        read = await self._reader.read(
            texts,
            resident,
            m.Request(goal=m.ReadActivations(keys=[attached.key]), prompts=(), client=KIND),
            of_kind(m.ActivationsRead),
            check=lambda: check_held(resident, [attached]),
            told=lambda count: report(
                READ_SHARE * count / len(texts), f"{count} of {len(texts)} texts are read"
            ),
            is_gentle=True,
        )
        found = [one.saes[0] for one in read]
        groups = [
            corpus.groups(one.features, one.counts, one.positions, one.values) for one in found
        ]
        pieces = [one.pieces for one in spelled]

        async def of_texts(index: int) -> tuple[list[FeatureText], list[str]]:
            examples, others = [], []
            for group, whole, skip in zip(groups, pieces, special, strict=True):
                parts, values = whole[skip:], [0.0] * len(whole)
                for place in group.places_of(index):
                    values[group.positions[place]] = group.values[place]
                values = values[skip:]
                if any(values):
                    examples.append(rules.around(parts, values))
                else:
                    others.append(rules.around(parts, values).text)
            return examples, _shuffled(others, asked.seed)

        return of_texts

    async def _of_corpora(
        self, asked: SuggestionRequest, attached: Attachment, index: int
    ) -> tuple[list[FeatureText], list[str]]:
        """The examples of the corpora, and among the random texts those of other features."""
        examples = await self._examples(attached, index)
        others: list[str] = []
        drawn = random.Random(asked.seed)  # noqa: S311 -- it must be repeatable
        for _ in range(4 * asked.examples):
            if not examples or len(others) >= asked.examples:
                break
            other = drawn.randrange(attached.d_sae)
            if other != index:
                others += [one.text for one in (await self._examples(attached, other))[:1]]
        return examples, others

    async def _examples(self, attached: Attachment, index: int) -> list[FeatureText]:
        return [
            rules.around(
                [one.text for one in example.tokens], [one.value for one in example.tokens]
            )
            for read in await self._corpora.of_feature(attached.sae_id, attached, index)
            for example in read.examples
        ]


def _suggested(row: SuggestionRow) -> SuggestedLabel:
    return SuggestedLabel(
        index=row.feature_idx,
        label=row.label,
        source="suggested",
        model=row.model,
        score=row.score,
        prompt_version=row.prompt_version,
        created_at=row.created_at,
        accepted=row.accepted == row.label,
    )


def _shuffled(texts: list[str], seed: int) -> list[str]:
    random.Random(seed).shuffle(texts)  # noqa: S311 -- it must be repeatable
    return texts
