"""What a vector does when it is added at one of its layers: where it acts best, and how strong. Texts are written at
some strengths as parts of a job, and read again without steering."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import mul
from statistics import fmean

from steerserve import messages as m
from steerserve.control.inference.steered_texts import (
    Writing,
    check_texts,
    normal_numbers,
    prompts_or_stock,
    write,
)
from steerserve.control.inference.texts import NamedText, TextReader, held_out, of_kind
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.control.steering.interventions import facts_of
from steerserve.errors import Refusal
from steerserve.nouns.directions.owner import Vectors
from steerserve.nouns.directions.rules import VectorRecord
from steerserve.nouns.effects import rules as effects
from steerserve.nouns.effects.rules import Written
from steerserve.nouns.trainings import rules as training
from steerserve.nouns.trainings.rules import Examples
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.steering import ladder, levers
from steerserve.rules.steering.levers import (
    Effort,
    LeverPlace,
    Measured,
    MeasuredStrength,
    ProbeOfTexts,
    RandomEffect,
)
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.placing import placed
from steerserve.rules.steering.request import RequestSteering, SteeredVector
from steerserve.rules.steering.vector import Direction, Vector

KIND = "vector_measurement"
SITE = "resid_post"
"""The site at which a probe reads texts."""
HALF = 0.5
TRIED_AGAIN = 3
"""The most strengths of a layer that are measured again with all texts."""
CHOICES_MAXIMUM = 8
"""The most continuations of one prompt."""
UNFINISHED = "its measurement was not finished"
WORK_OF_PROBE = 0.1
"""The share of the progress that is the training of the probe."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """How a vector is measured. The effect is that of `words`, or without words that of a probe of the positives
    against the negatives. `layers` and `strengths` are chosen where they are None."""

    positives: Sequence[NamedText]
    negatives: Sequence[NamedText]
    words: Sequence[str]
    prompts: Sequence[str | Conversation] | None
    layers: Sequence[int] | None
    strengths: Sequence[float] | None
    tokens: int
    temperature: float
    seed: int
    random_directions: int
    client: str
    effort: Effort = levers.WHOLE


@dataclass(frozen=True, slots=True)
class _Probe:
    """A probe that reads texts: its weights [hidden] at one layer, and its bias."""

    told: ProbeOfTexts
    weights: array[float]
    bias: float


@dataclass(frozen=True, slots=True)
class _Begun:
    """A measurement on the resident model, and what its texts are compared with. `units` has, for each layer, the
    strength at which the vector is as long as the values of its site are on the plain texts, on average."""

    asked: Measurement
    vector: Vector
    how: Writing
    probe: _Probe | None
    plain: Sequence[Written]
    units: Mapping[int, float]
    draw: Callable[[int], int]
    plain_scores: Sequence[float | None] = ()

    @property
    def few(self) -> Writing:
        """How the texts of each place are written."""
        return replace(self.how, prompts=self.how.prompts[: self.asked.effort.prompts])


class VectorMeasurements:
    """Measures vectors on the resident model; it never loads one."""

    def __init__(
        self, conductor: Conductor, reader: TextReader, vectors: Vectors, jobs: Jobs
    ) -> None:
        self._conductor = conductor
        self._reader = reader
        self._vectors = vectors
        self._jobs = jobs

    async def start(self, name: str, asked: Measurement) -> Job:
        """Begin the measurement of a stored vector, which replaces an earlier one. Its job is refused what an inference
        request is refused, with the name of the text; and MODEL_NOT_LOADED, VECTOR_NOT_FOUND when the model or the
        vector goes meanwhile.

        Raises:
            Refusal: VECTOR_NOT_FOUND; MODEL_NOT_LOADED, TOO_MANY_JOBS; VECTOR_MISMATCH; INVALID_INTERVENTION for a
                vector that is projected out; INVALID_PARAMETER for a GGUF model, a model that can only embed, layers
                that the vector does not have, strengths beyond single precision, and too many texts.
        """
        vector = await self._vectors.find(name)
        resident = self._conductor.loaded()
        check_layered(resident.row)
        layers = {one.layer for one in vector.directions}
        for place, layer in enumerate(asked.layers or ()):
            if layer not in layers:
                where = f"layers[{place}]"
                why = f"{where}: the vector has no direction at layer {layer}"
                raise Refusal("INVALID_PARAMETER", why, param=where)
        made = _added(vector, resident, vector.directions[0].layer)
        ladder.check_strengths(made, asked.strengths or ())
        _check_texts(asked)
        return self._jobs.start(KIND, partial(self._run, asked, vector, resident))

    async def keep(
        self, asked: Measurement, record: VectorRecord, resident: Resident, report: Report
    ) -> VectorRecord:
        """Measure a vector that was just trained. Where that is refused, the record says why.

        Raises:
            Refusal: VECTOR_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        fewest = min(len(asked.positives), len(asked.negatives))
        if fewest < levers.EXAMPLES_MINIMUM:
            return await self._vectors.keep_measurement(record.id, levers.too_few(fewest))
        await self._vectors.keep_measurement(record.id, UNFINISHED)
        vector = await self._vectors.find(record.id)
        try:
            found: Measured | str = await self._measured(asked, vector, resident, report)
        except Refusal as refusal:
            found = refusal.message
        return await self._vectors.keep_measurement(record.id, found)

    # ------------------------------------------------------------- inside

    async def _run(
        self, asked: Measurement, vector: Vector, resident: Resident, report: Report
    ) -> VectorRecord:
        found = await self._measured(asked, vector, resident, report)
        return await self._vectors.keep_measurement(vector.id, found)

    async def _measured(
        self, asked: Measurement, vector: Vector, resident: Resident, report: Report
    ) -> Measured:
        _, facts = resident.running()
        layers = asked.layers or await self._layers(vector)
        is_chat = facts.chat_template is not None
        prompts = prompts_or_stock(asked.prompts, asked.client, is_chat=is_chat)
        probe = None if asked.words else await self._probe(asked, resident, report)
        read = [] if probe is None else [(SITE, probe.told.layer)]
        how = Writing(
            resident,
            prompts,
            asked.tokens,
            asked.temperature,
            asked.seed,
            resident.running,
            sites=read,
        )
        report(WORK_OF_PROBE, "texts are written without steering")
        directions = [_direction(vector, layer) for layer in layers]
        places = [(one.site, one.layer) for one in directions]
        every = list(dict.fromkeys([*read, *places]))
        plain = await self._repeated(
            replace(how, sites=every), Placed({}), 0.0, asked.effort.confirmed
        )
        begun = _Begun(
            asked,
            vector,
            how,
            probe,
            plain,
            units={
                one.layer: _mean_length(plain, every.index(place)) / one.norm
                for one, place in zip(directions, places, strict=True)
            },
            draw=random.Random(f"{asked.seed} bootstrap").randrange,  # noqa: S311 -- repeatable
        )
        begun = replace(begun, plain_scores=_scores(begun, plain))
        rows: list[MeasuredStrength] = []
        share = levers.FIRST_LENGTH
        for number, layer in enumerate(layers):
            done = WORK_OF_PROBE + (1 - WORK_OF_PROBE) * number / (len(layers) + 1)
            report(done, f"layer {layer} is measured")
            found, share = await self._layer(begun, layer, share)
            rows += found
        done = WORK_OF_PROBE + (1 - WORK_OF_PROBE) * len(layers) / (len(layers) + 1)
        report(done, "the best layers are measured with more texts")
        await self._close_in_again(begun, rows)
        report((1 + done) / 2, "the best place and random directions are measured with many texts")
        best = await self._confirmed(begun, rows)
        others = [] if best is None else await self._random(begun, best)
        return self._told(begun, rows, best, others)

    async def _close_in_again(self, begun: _Begun, rows: list[MeasuredStrength]) -> None:
        """At the layers that were best with few texts, let the strengths close in once more with more texts."""
        if begun.asked.strengths is None:
            for place in levers.best_by_layer(rows)[: begun.asked.effort.finalists]:
                again = partial(self._again, begun, rows, place.layer, begun.asked.effort.texts)
                await _close_in(place.strength, TRIED_AGAIN, again)

    async def _confirmed(
        self, begun: _Begun, rows: list[MeasuredStrength]
    ) -> MeasuredStrength | None:
        """The best place, measured again with many texts; where they are broken, the next best one."""
        texts = max((one.texts for one in rows), default=0)
        for _ in range(TRIED_AGAIN):
            best = levers.best([one for one in rows if one.texts >= texts])
            if best is None or best.texts == len(begun.plain):
                return best
            many = begun.asked.effort.confirmed
            await self._again(begun, rows, best.layer, many, best.strength)
        return levers.best([one for one in rows if one.texts == len(begun.plain)])

    async def _again(
        self, begun: _Begun, rows: list[MeasuredStrength], layer: int, texts: int, strength: float
    ) -> float:
        """Measure a place with more texts, in place of its row with fewer. Returns the damage."""
        lever = _added(begun.vector, begun.how.resident, layer)
        written = await self._repeated(begun.how, lever, strength, texts)
        again = await self._row(begun, layer, strength, written)
        rows[:] = [one for one in rows if (one.layer, one.strength) != (layer, strength)]
        rows.append(again)
        return levers.broken_share(again.damage)

    async def _repeated(
        self, how: Writing, lever: Placed, strength: float, about: int
    ) -> list[Written]:
        """About so many texts: those of all prompts, then further ones of all prompts. Each prompt is continued once
        where no token is drawn by chance."""
        repeats = _repeats(about, len(how.prompts)) if how.temperature else 1
        texts = await write(self._reader, replace(how, choices=repeats), lever, strength)
        return [one for number in range(repeats) for one in texts[number::repeats]]

    def _told(
        self,
        begun: _Begun,
        rows: list[MeasuredStrength],
        best: MeasuredStrength | None,
        others: list[RandomEffect],
    ) -> Measured:
        asked, probe = begun.asked, begun.probe
        plain = _share(asked.words, begun.plain)
        works = False
        if best is not None and best.effect is not None and best.effect_low is not None:
            highs = [one.effect_high for one in others]
            works = (
                levers.works(best.effect, best.effect_low, plain, highs)
                if asked.words
                else levers.is_above(best.effect_low, 0.0, highs)
            )
        return Measured(
            model=begun.how.resident.row.name,
            by="words" if asked.words else "probe",
            words=list(asked.words),
            probe=None if probe is None else probe.told,
            plain=plain,
            layers=sorted(rows, key=lambda one: (one.layer, one.strength)),
            best=None if best is None else LeverPlace(best.layer, best.strength),
            works=works,
            random=others,
            tokens=asked.tokens,
            temperature=asked.temperature,
            seed=asked.seed,
        )

    async def _layers(self, vector: Vector) -> list[int]:
        """The layers of a vector that are measured where none are named."""
        record = await self._vectors.get(vector.id)
        layers = sorted({one.layer for one in vector.directions})
        if record.training is None or record.training.best_layer is None:
            return levers.layers_to_measure(layers, layers)
        best = record.training.best_layer
        aucs = {one.layer: one.auc_held_out or 0.0 for one in record.training.layers}
        ranked = sorted(layers, key=lambda one: (-aucs.get(one, 0.0), one != best, one))
        most = aucs.get(best, 0.0)
        alike = [one for one in layers if aucs.get(one, 0.0) >= most - levers.ALIKE]
        return levers.layers_to_measure(alike, ranked)

    # ------------------------------------------------------------- the probe

    async def _probe(self, asked: Measurement, resident: Resident, report: Report) -> _Probe:
        """A probe of the positives against the negatives, trained on one half of them, at the layer of the last third
        that tells the other half apart best.

        Raises:
            Refusal: INVALID_PARAMETER where the texts of both groups are alike.
        """
        engine, facts = resident.running()
        layers = list(range(facts.layers - max(1, facts.layers // 3), facts.layers))
        read = await self._reader.read(
            [*asked.positives, *asked.negatives],
            resident,
            m.Request(
                goal=m.ReadStates(layers=layers, site=SITE, places=m.Places("mean")),
                prompts=(),
                client=KIND,
            ),
            of_kind(m.StatesRead),
            check=resident.running,
            told=partial(_tell, report, 0.0, "texts are read"),
        )
        width = facts.site_widths[SITE]
        examples = _examples(asked)
        fits, found = [], []
        for number, layer in enumerate(layers):
            part = slice(4 * width * number, 4 * width * (number + 1))
            question = m.Fit(
                layer=layer,
                states=b"".join(one.states[part] for one in read),
                is_positive=list(examples.is_positive),
                is_held_out=list(examples.is_held_out),
                is_paired=False,
                method="probe",
                seed=asked.seed,
                is_compared=False,
            )
            fits.append(await engine.ask(question))
            found.append(training.judged(examples, fits[-1].scores))
        best = training.best(layers, found, [None] * len(layers))
        at = layers.index(best)
        weights = array("f", fits[at].direction)
        return _Probe(ProbeOfTexts(best, found[at].auc or 0.0), weights, fits[at].bias)

    # ------------------------------------------------------------- strengths

    async def _layer(
        self, begun: _Begun, layer: int, share: float
    ) -> tuple[list[MeasuredStrength], float]:
        """What the vector does at one layer. `share` is the length of what the first strength adds, as a share of the
        mean length of the values of the site. Beside the rows, the share of the largest strength that left texts whole:
        the next layer begins with it."""
        lever = _added(begun.vector, begun.how.resident, layer)

        rows: list[MeasuredStrength] = []

        async def measure(strength: float) -> float:
            written = await write(self._reader, begun.few, lever, strength)
            rows.append(await self._row(begun, layer, strength, written))
            return levers.broken_share(rows[-1].damage)

        if begun.asked.strengths is not None:
            for strength in begun.asked.strengths:
                await measure(strength)
        elif unit := begun.units[layer]:
            await _close_in(share * unit, begun.asked.effort.strengths, measure)
            whole = [one.strength for one in rows if one.damage.is_unbroken]
            share = max(whole) / unit if whole else share
        return rows, share

    async def _row(
        self, begun: _Begun, layer: int, strength: float, written: Sequence[Written]
    ) -> MeasuredStrength:
        effect = _effect(begun, written)
        row = effects.row(strength, written, ())
        plain = effects.row(0.0, begun.plain[: len(written)], ())
        damage = levers.damage(
            row.nll_under_plain,
            plain.nll_under_plain,
            row.repetition,
            plain.repetition,
            [one.text for one in written],
        )
        return MeasuredStrength(
            layer=layer,
            strength=strength,
            texts=len(written),
            effect=None if effect is None else effect.effect,
            effect_low=None if effect is None else effect.effect_low,
            effect_high=None if effect is None else effect.effect_high,
            damage=damage,
            sample=written[0].text,
        )

    async def _random(self, begun: _Begun, best: MeasuredStrength) -> list[RandomEffect]:
        """The effects of random directions of the vector's length at the best place."""
        lever = _added(begun.vector, begun.how.resident, best.layer)
        _, facts = begun.how.resident.running()
        draw = normal_numbers(begun.asked.seed)
        found = []
        for _ in range(begun.asked.random_directions):
            other = ladder.randomised(lever, {}, {}, facts.site_widths, draw)
            assert other is not None
            many = begun.asked.effort.confirmed
            written = await self._repeated(begun.how, other, best.strength, many)
            effect = _effect(begun, written)
            found += [effect] if effect is not None else []
        return found


def _repeats(texts: int, prompts: int) -> int:
    """How often each prompt is continued for about so many texts. The choices of a seeded request run together, and
    need room together."""
    return min(CHOICES_MAXIMUM, math.ceil(texts / prompts))


async def _close_in(first: float, most: int, measure: Callable[[float], Awaitable[float]]) -> None:
    """Measure a lever at strengths that close in on the strongest one that leaves texts unbroken, at most so many.
    `measure` returns the damage at a strength."""
    tried: dict[float, float] = {}
    while (strength := levers.next_strength(tried, first, most)) is not None:
        try:
            tried[strength] = await measure(strength)
        except Refusal as refusal:
            if refusal.code != "NON_FINITE_LOGITS":
                raise
            tried[strength] = math.inf


def _added(vector: Vector, resident: Resident, layer: int) -> Placed:
    """The vector, added at one layer at the value 1.

    Raises:
        Refusal: VECTOR_MISMATCH; INVALID_INTERVENTION for a vector that is projected out.
    """
    edit = SteeredVector(vector, "add", 1.0, layers=(layer,))
    attached = list(resident.attachments.values())
    return placed(RequestSteering((edit,), field=""), attached, facts_of(resident, {}))


def _check_texts(asked: Measurement) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for more texts than a job writes.
    """
    prompts = len(effects.STOCK_TEXTS if asked.prompts is None else asked.prompts)
    layers = levers.LAYERS if asked.layers is None else len(asked.layers)
    effort = asked.effort
    strengths = effort.strengths if asked.strengths is None else len(asked.strengths)
    few = layers * strengths
    closings = 0 if asked.strengths is not None else effort.finalists * TRIED_AGAIN
    more = closings * _repeats(effort.texts, prompts)
    many = (1 + TRIED_AGAIN + asked.random_directions) * _repeats(effort.confirmed, prompts)
    check_texts(prompts * (few + more + many))


def _examples(asked: Measurement) -> Examples:
    """Which texts are positive, and which half of each group is held out."""
    counts = len(asked.positives), len(asked.negatives)
    out = [
        held_out(count, HALF, asked.seed, name)
        for count, name in zip(counts, ("positives", "negatives"), strict=True)
    ]
    return Examples(
        [True] * counts[0] + [False] * counts[1],
        [place in held for count, held in zip(counts, out, strict=True) for place in range(count)],
    )


def _share(words: Sequence[str], written: Sequence[Written]) -> float:
    """The share of the texts that have one of the words; 0 without words."""
    return fmean(effects.contains(one.text, words) for one in written)


def _effect(begun: _Begun, written: Sequence[Written]) -> RandomEffect | None:
    if begun.probe is None:
        words = begun.asked.words
        count = sum(effects.contains(one.text, words) for one in written)
        low, high = levers.share_interval(count, len(written))
        share = count / len(written)
        return RandomEffect(effect=share, effect_low=low, effect_high=high)
    prompts = len(begun.how.prompts)
    found = levers.scored(_scores(begun, written), begun.plain_scores, prompts, begun.draw)
    if found is None:
        return None
    return RandomEffect(effect=found[0], effect_low=found[1], effect_high=found[2])


def _scores(begun: _Begun, written: Sequence[Written]) -> list[float | None]:
    """The score of each text under the probe, read without steering behind its prompt: the mean over its tokens. None
    for a blank text, and without a probe."""
    probe = begun.probe
    return [
        _probed(probe, one.states[0]) if probe is not None and one.text.strip() else None
        for one in written
    ]


def _direction(vector: Vector, layer: int) -> Direction:
    return next(one for one in vector.directions if one.layer == layer)


def _probed(probe: _Probe, states: bytes) -> float:
    """The score of a value [hidden] under a probe."""
    return math.fsum(map(mul, probe.weights, array("f", states))) + probe.bias


def _mean_length(written: Sequence[Written], site: int) -> float:
    return fmean(math.hypot(*array("f", one.states[site])) for one in written)


def _tell(report: Report, share: float, message: str, count: int) -> None:
    report(share, message)
