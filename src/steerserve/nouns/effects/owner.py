"""Effects: what a feature, a vector or a list of edits does at a ladder of strengths. Texts are written as parts of a
job, and each is compared with the model without steering."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from steerserve import messages as m
from steerserve.control.inference.generate import fingerprint
from steerserve.control.inference.planning import state_of
from steerserve.control.inference.steered_texts import (
    Writing,
    check_texts,
    normal_numbers,
    prompts_or_stock,
    write,
)
from steerserve.control.inference.texts import NamedText, TextReader
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, check_held
from steerserve.control.steering.interventions import EditParts, facts_of
from steerserve.errors import Refusal
from steerserve.messages.spelling import Spell
from steerserve.nouns.effects import rules
from steerserve.nouns.effects.form import (
    EffectList,
    EffectRecord,
    Effects,
    KeptEffects,
    TargetWords,
)
from steerserve.nouns.effects.rules import EffectSummary, Written
from steerserve.nouns.effects.store import EffectRow as KeptRow
from steerserve.nouns.effects.store import EffectStore
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.steering import ladder
from steerserve.rules.steering.edits import Feature
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.placing import ModelFacts, placed
from steerserve.rules.steering.request import MAX, RequestSteering, SteeredFeature
from steerserve.settings import Settings

KIND = "effects"
WORD_MAXIMUM = 1000
NO_COUNTERPART = (
    "the lever edits what a feature reads; only added features and edits of vectors have a random "
    "counterpart"
)


@dataclass(frozen=True, slots=True)
class EffectsRequest:
    """A lever, and how it is measured. `lever` is its JSON, with one field: `feature` or `vector`, for which `steering`
    has one edit, or `edits`. The `prompts` are those of the service where they are None. The target words are compared
    with the control words; both are empty where no words are asked for. `client` names who asks."""

    lever: Mapping[str, object]
    steering: RequestSteering
    strengths: Sequence[float]
    prompts: Sequence[str | Conversation] | None
    tokens: int
    temperature: float
    seed: int
    target: Sequence[str]
    control: Sequence[str]
    random_directions: int
    client: str


@dataclass(frozen=True, slots=True)
class _Ladder:
    """A measurement that was begun: the lever on the resident model, its prompts, and the attached SAEs that it reads
    or writes."""

    asked: EffectsRequest
    resident: Resident
    made: Placed
    model: ModelFacts
    prompts: Sequence[NamedText]
    used: Sequence[Attachment]
    largest: float | None

    @property
    def texts(self) -> int:
        """The texts that are written: without steering, and at each strength by the lever and the random directions."""
        asked = self.asked
        return len(self.prompts) * (1 + len(asked.strengths) * (1 + asked.random_directions))


class EffectMeasurements:
    """Starts measurements on the resident model, and keeps their results. It never loads a model."""

    def __init__(
        self,
        settings: Settings,
        conductor: Conductor,
        reader: TextReader,
        parts: EditParts,
        jobs: Jobs,
        store: EffectStore,
    ) -> None:
        self._settings = settings
        self._store = store
        self._conductor = conductor
        self._reader = reader
        self._parts = parts
        self._jobs = jobs

    async def start(self, asked: EffectsRequest) -> Job:
        """Begin a measurement. Its job is refused what an inference request is refused, with the name of the prompt;
        INVALID_PARAMETER for a word without a token of its own; NON_FINITE_LOGITS where the steering breaks the model;
        MODEL_NOT_LOADED, SAE_NOT_ATTACHED or VECTOR_NOT_FOUND when the model, an SAE or a vector goes meanwhile.

        Raises:
            Refusal: MODEL_NOT_LOADED, TOO_MANY_JOBS; INVALID_PARAMETER for a GGUF model, and a model
                that can only embed, for a strength beyond the bounds of the lever, and for too many texts; the refusals
                of `rules/steering/placing.placed`; VECTOR_NOT_FOUND, PROBE_NOT_FOUND; INVALID_INTERVENTION for a lever
                that changes nothing, and for roles in prompts without messages; DOCUMENT_STORE_FULL where the result
                could not be kept.
        """
        resident = self._conductor.loaded()
        await self._store.check_room()
        check_layered(resident.row)
        _, facts = resident.running()
        try:
            own = await self._parts.with_vectors(asked.steering)
            attached = list(resident.attachments.values())
            model = facts_of(resident, await self._parts.largest(own, attached))
            made = placed(own, attached, model)
        except Refusal as refusal:
            raise _of_lever(refusal, asked) from None
        if not (made.edits or any(any(one.values()) for one in made.values.values())):
            raise _of_lever(_invalid("edits[0]", "the lever changes nothing"), asked)
        ladder.check_strengths(made, asked.strengths)
        prompts = _prompts(asked, made, is_chat=facts.chat_template is not None)
        keys = {*made.values, *(key for edit in made.edits for key in edit.keys)}
        used = [one for one in attached if one.key in keys]
        largest = await self._largest(asked, used)
        begun = _Ladder(asked, resident, made, model, prompts, used, largest)
        check_texts(begun.texts)
        return self._jobs.start(KIND, partial(self._run, begun))

    # ------------------------------------------------------------- kept results

    async def page(self, limit: int, offset: int, evidence_for: str | None) -> EffectList:
        """Some of the kept results, the newest first; with `evidence_for` those for one document."""
        rows, total = await self._store.page(limit, offset, evidence_for)
        return EffectList([EffectRecord(**_record(row)) for row in rows], total)

    async def get(self, effect_id: str) -> KeptEffects:
        """Raises:
        Refusal: EFFECT_NOT_FOUND.
        """
        row, text = await self._store.get(effect_id)
        result = await asyncio.to_thread(msgspec.json.decode, text, type=Effects)
        return KeptEffects(**_record(row), result=structs.replace(result, id=row.id))

    async def remove(self, effect_id: str) -> str:
        """Delete a kept result, and return its id.

        Raises:
            Refusal: EFFECT_NOT_FOUND.
        """
        await self._store.remove(effect_id)
        return effect_id

    async def attach(self, effect_id: str, document_id: str) -> EffectRecord:
        """Make a kept result evidence for a profile, a cluster or a circuit.

        Raises:
            Refusal: EFFECT_NOT_FOUND, PROFILE_NOT_FOUND, CIRCUIT_NOT_FOUND.
        """
        await self._store.attach(effect_id, document_id)
        return EffectRecord(**_record((await self._store.get(effect_id))[0]))

    async def detach(self, effect_id: str, document_id: str) -> EffectRecord:
        """Make a kept result no evidence for a document.

        Raises:
            Refusal: EFFECT_NOT_FOUND; PROFILE_NOT_FOUND or CIRCUIT_NOT_FOUND where it is none.
        """
        await self._store.detach(effect_id, document_id)
        return EffectRecord(**_record((await self._store.get(effect_id))[0]))

    # ------------------------------------------------------------- inside

    async def _run(self, begun: _Ladder, report: Report) -> Effects:
        asked = begun.asked
        words = await self._words(begun)
        done = 0

        async def texts(lever: Placed, strength: float) -> list[Written]:
            nonlocal done
            written = await self._written(begun, lever, strength, words, report, done)
            done += len(begun.prompts)
            return written

        target = asked.target
        own = await texts(begun.made, 0.0)
        unjudged = rules.row(0.0, own, target)
        plain = rules.judged(unjudged, own, unjudged)
        steered = [(strength, await texts(begun.made, strength)) for strength in asked.strengths]
        others = await self._others(begun)
        rows, drawn = [], []
        for strength, written in steered:
            directions = [await texts(one, strength) for one in others]
            each = [rules.row(strength, one, target) for one in directions]
            rows.append(rules.judged(rules.row(strength, written, target), written, plain, each))
            together = list(itertools.chain.from_iterable(directions))
            if together:
                drawn.append(rules.judged(rules.row(strength, together, target), together, plain))
        check_held(begun.resident, begun.used)
        values, edits = ladder.at(begun.made, 1.0)
        modifiers = asked.steering.modifiers
        state = state_of(begun.resident, values, edits, modifiers=modifiers)
        is_missing = not others and asked.random_directions > 0
        result = Effects(
            id=None,
            not_kept=None,
            digest="",
            model=begun.resident.row.name,
            system_fingerprint=fingerprint(begun.resident),
            lever=dict(asked.lever),
            steering_state=state,
            prompts=len(begun.prompts),
            are_stock=asked.prompts is None,
            tokens=asked.tokens,
            temperature=asked.temperature,
            seed=asked.seed,
            target=TargetWords(list(asked.target), list(asked.control)) if asked.target else None,
            random_directions=len(others),
            plain=plain,
            rows=rows,
            calibrated=rules.calibrated(rows),
            suggested=rules.suggested(asked.lever, rows, begun.largest),
            random=drawn,
            random_calibrated=rules.calibrated(drawn) if drawn else None,
            random_missing=NO_COUNTERPART if is_missing else None,
        )
        if not self._settings.keep_effect_samples:
            result = _without_samples(result)
        return await self._kept(structs.replace(result, digest=_digest(result)))

    async def _largest(self, asked: EffectsRequest, used: Sequence[Attachment]) -> float | None:
        """The largest activation of the one feature of the lever that is known; None for another lever.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        if "feature" not in asked.lever:
            return None
        edits = [
            replace(edit, unit=MAX)
            for edit in asked.steering.edits
            if isinstance(edit, SteeredFeature)
        ]
        known = await self._parts.largest(replace(asked.steering, edits=tuple(edits)), used)
        return max(known.values(), default=None)

    async def _kept(self, result: Effects) -> Effects:
        """The result with the id under which it is kept, or with the reason why it is not."""
        summary = EffectSummary(
            digest=result.digest,
            model=result.model,
            steering_state=result.steering_state,
            lever=result.lever,
            strengths=[one.strength for one in result.rows],
            calibrated=result.calibrated,
            suggested=result.suggested,
        )
        try:
            kept = await self._store.add(summary, msgspec.json.encode(result).decode())
        except Refusal as refusal:
            return structs.replace(result, not_kept=refusal.message)
        return structs.replace(result, id=kept)

    async def _written(
        self,
        begun: _Ladder,
        lever: Placed,
        strength: float,
        words: Sequence[Sequence[Sequence[int]]],
        report: Report,
        done: int,
    ) -> list[Written]:
        """The texts of all prompts with a lever at one strength.

        Raises:
            Refusal: as `start` says of the job.
        """
        asked = begun.asked
        await self._parts.with_vectors(asked.steering)  # a vector may be gone by now
        how = Writing(
            begun.resident,
            begun.prompts,
            asked.tokens,
            asked.temperature,
            asked.seed,
            lambda: check_held(begun.resident, begun.used),
            asked.steering.modifiers,
            words,
        )

        def report_measured(count: int) -> None:
            report((done + count) / begun.texts, f"{done + count} of {begun.texts} texts")

        return await write(self._reader, how, lever, strength, report_measured)

    async def _others(self, begun: _Ladder) -> list[Placed]:
        """Random directions in the place of the lever; none where it has no such counterpart."""
        count, made = begun.asked.random_directions, begun.made
        if not count:
            return []
        norms: dict[Feature, float] = {}
        engine, facts = begun.resident.running()
        for feature in dict.fromkeys(ladder.needs_norms(made)):
            check_held(begun.resident, begun.used)
            asked = m.Explore(key=feature.key, features=[feature.index])
            (told,) = (await engine.ask(asked)).features
            norms[feature] = told.decoder_norm
        places = {one.key: begun.model.place(one) for one in begun.used}

        def draw() -> list[Placed | None]:
            normal = normal_numbers(begun.asked.seed)
            return [
                ladder.randomised(made, norms, places, facts.site_widths, normal)
                for _ in range(count)
            ]

        drawn = await asyncio.to_thread(draw)
        return [one for one in drawn if one is not None]

    async def _words(self, begun: _Ladder) -> list[list[list[int]]]:
        """For the target words and the control words, the tokens that each may begin with."""
        asked = begun.asked
        groups = [("target.words", asked.target), ("target.control", asked.control)]
        return [
            [
                await self._first(begun.resident, f"{name}[{place}]", word)
                for place, word in enumerate(group)
            ]
            for name, group in groups
            if group
        ]

    async def _first(self, resident: Resident, where: str, word: str) -> list[int]:
        """The tokens that a word begins with: as it is written, and behind a space.

        Raises:
            Refusal: INVALID_PARAMETER where both begin with a blank token.
        """
        engine, _ = resident.running()
        first: set[int] = set()
        for text in (word, f" {word}"):
            asked = Spell(prompt=m.Text(text, special=False), longest=WORD_MAXIMUM)
            spelled = await engine.ask(asked)
            if spelled.ids and spelled.pieces[0].strip():
                first.add(spelled.ids[0])
        if not first:
            why = f"{where}: the model has no token with which {word!r} begins"
            raise Refusal("INVALID_PARAMETER", why, param=where)
        return sorted(first)


def _prompts(asked: EffectsRequest, made: Placed, *, is_chat: bool) -> list[NamedText]:
    """Raises:
    Refusal: INVALID_INTERVENTION where edits act on roles and a prompt has no messages.
    """
    is_located = any(edit.positions.roles for edit in made.edits)
    prompts = prompts_or_stock(asked.prompts, asked.client, is_chat=is_chat, is_located=is_located)
    where = asked.steering.roles_at
    if where is not None and any(isinstance(one.prompt, m.Text) for one in prompts):
        raise _invalid(where, "a text has no messages with roles")
    return prompts


def _invalid(where: str, why: str) -> Refusal:
    return Refusal("INVALID_INTERVENTION", f"{where}: {why}", param=where)


def _of_lever(refusal: Refusal, asked: EffectsRequest) -> Refusal:
    """A refusal of an edit, with the place where the request has its lever."""
    if "edits" in asked.lever or refusal.param is None:
        return refusal
    (name,) = asked.lever
    param = name if refusal.param == "edits[0]" else refusal.param.removeprefix("edits[0].")
    message = refusal.message.replace(refusal.param, param, 1)
    return Refusal(refusal.code, message, param=param, **refusal.details)


def _without_samples(result: Effects) -> Effects:
    plain, *rows = (
        structs.replace(row, samples=[]) for row in (result.plain, *result.rows, *result.random)
    )
    count = len(result.rows)
    return structs.replace(result, plain=plain, rows=rows[:count], random=rows[count:])


def _digest(result: Effects) -> str:
    """The SHA-256 of all fields but the digest and those that say how the result is kept, as JSON with sorted keys and
    without blanks."""
    document = msgspec.to_builtins(result)
    for name in ("digest", "id", "not_kept"):
        del document[name]
    text = msgspec.json.encode(document, order="deterministic")
    return f"sha256={hashlib.sha256(text).hexdigest()}"


def _record(row: KeptRow) -> dict[str, Any]:
    return structs.asdict(row.summary) | {
        "id": row.id,
        "created_at": row.created_at,
        "evidence_for": row.supports,
    }
