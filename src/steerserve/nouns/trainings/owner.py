"""Vectors and probes from examples: texts are read as parts of a job, and a direction is fitted for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from steerserve import messages as m
from steerserve.control.inference.texts import NamedText, TextReader, held_out, of_kind, prompt_of
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.nouns.contrasts.rules import check_groups
from steerserve.nouns.directions.owner import Probes, Vectors
from steerserve.nouns.directions.rules import (
    FeatureNeighbour,
    ProbeRecord,
    ReadPosition,
    TextIndex,
    TrainedLayer,
    Training,
    VectorRecord,
    VectorSource,
)
from steerserve.nouns.lens.rules import check_layers
from steerserve.nouns.measurements.owner import Measurement, VectorMeasurements
from steerserve.nouns.trainings import rules
from steerserve.nouns.trainings.rules import Examples, Judgement
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.steering import levers
from steerserve.rules.steering.positions import Span
from steerserve.rules.steering.probe import ReadProbe
from steerserve.rules.steering.vector import Direction, ReadVector

VECTOR, PROBE = "vector_training", "probe_training"
COMPLETION = "mean_completion"
STATES_MAXIMUM = 512 << 20
"""The most bytes of values that one job reads of its texts."""
NEIGHBOURS = 10
READ_SHARE = 0.8
"""The share of the progress of a training that is the reading of the texts."""
MEASURED_FROM = 0.4
"""The progress of a job when the training ends and the measurement begins."""
MEASURED_TOKENS, MEASURED_RANDOM = 24, 2
"""The prompts that the measurement continues at each strength, the tokens of a text, and the random directions."""

Method = Literal["mean_difference", "pca", "logistic"]


@dataclass(frozen=True, slots=True)
class Example:
    """A text or a conversation, at this place in the request, which continues the `prompt` where there is one."""

    place: str
    text: str | Conversation
    prompt: str | Conversation | None = None


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """The examples, how they are read, and how a direction is fitted to them. With `is_paired` the k-th positive and
    the k-th negative one are a pair. `layers` are all where it is None. A probe is fitted by logistic regression. With
    `is_measured` a vector is measured when it is stored. `client` names who asks."""

    name: str
    positives: Sequence[Example]
    negatives: Sequence[Example]
    is_paired: bool
    layers: tuple[int, ...] | None
    site: str
    method: Method
    is_probe: bool
    read: ReadPosition
    has_special: bool
    holdout: float
    seed: int
    is_measured: bool
    client: str


@dataclass(frozen=True, slots=True)
class _Line:
    """What was fitted at one layer."""

    direction: Direction
    bias: float
    judgement: Judgement
    told: TrainedLayer


class Trainings:
    """Starts trainings on the resident model; it never loads one."""

    def __init__(
        self,
        conductor: Conductor,
        reader: TextReader,
        vectors: Vectors,
        probes: Probes,
        jobs: Jobs,
        measurements: VectorMeasurements,
    ) -> None:
        self._conductor = conductor
        self._reader = reader
        self._vectors = vectors
        self._probes = probes
        self._jobs = jobs
        self._measurements = measurements

    async def start(self, asked: TrainingRequest) -> Job:
        """Begin a training. Its job is refused what a scoring request is refused, with the name of the text;
        INVALID_PARAMETER for a text without a position to read, and where the examples of both groups are alike; and
        MODEL_NOT_LOADED when the model goes meanwhile.

        Raises:
            Refusal: MODEL_NOT_LOADED, TOO_MANY_JOBS; VALIDATION_ERROR for the name; VECTOR_ALREADY_EXISTS,
                PROBE_ALREADY_EXISTS; INVALID_PARAMETER for a GGUF model, equal texts, a model
                that can only embed, layers and sites that the model does not have, completions that are not known, and
                for too many values.
        """
        _check_examples(asked)
        await (self._probes if asked.is_probe else self._vectors).check_name(asked.name)
        resident = self._conductor.loaded()
        check_layered(resident.row)
        _, facts = resident.running()
        check_layers(asked.layers, facts.layers)
        layers = tuple(sorted(asked.layers or range(facts.layers)))
        width = facts.site_widths.get(asked.site)
        if width is None:
            why = f"site: the model has {', '.join(facts.site_widths)}"
            raise Refusal("INVALID_PARAMETER", why, param="site")
        texts = [_named(one, asked) for one in (*asked.positives, *asked.negatives)]
        needed = 4 * len(texts) * len(layers) * width
        if needed > STATES_MAXIMUM:
            why = (
                f"layers: {len(texts)} texts at {len(layers)} layers have {needed} bytes of values; "
                f"at most {STATES_MAXIMUM} are read"
            )
            raise Refusal(
                "INVALID_PARAMETER", why, param="layers", needed=needed, maximum=STATES_MAXIMUM
            )
        kind = PROBE if asked.is_probe else VECTOR
        return self._jobs.start(kind, partial(self._run, asked, resident, layers, width, texts))

    # ------------------------------------------------------------- inside

    async def _run(
        self,
        asked: TrainingRequest,
        resident: Resident,
        layers: Sequence[int],
        width: int,
        texts: Sequence[NamedText],
        report: Report,
    ) -> VectorRecord | ProbeRecord:
        places, whole = _places(asked), report
        if asked.is_measured:
            report = _part(whole, 0.0, MEASURED_FROM)
        read = await self._reader.read(
            texts,
            resident,
            m.Request(
                goal=m.ReadStates(layers=list(layers), site=asked.site, places=places),
                prompts=(),
                client=VECTOR,
            ),
            of_kind(m.StatesRead),
            check=resident.running,
            told=lambda count: report(
                READ_SHARE * count / len(texts), f"{count} of {len(texts)} texts are read"
            ),
        )
        examples = _examples(asked)
        lines = []
        for number, layer in enumerate(layers):
            part = slice(4 * width * number, 4 * width * (number + 1))
            states = b"".join(one.states[part] for one in read)
            lines.append(await _line(asked, resident, layer, states, examples))
            share = READ_SHARE + (1 - READ_SHARE) * (number + 1) / (len(layers) + 1)
            report(share, f"{number + 1} of {len(layers)} layers are fitted")
        training = await self._training(asked, lines, examples)
        stored = await self._stored(asked, resident, lines, training)
        if isinstance(stored, ProbeRecord) or not asked.is_measured:
            return stored
        report = _part(whole, MEASURED_FROM, 1.0)
        return await self._measurements.keep(_measurement(asked, texts), stored, resident, report)

    async def _training(
        self, asked: TrainingRequest, lines: Sequence[_Line], examples: Examples
    ) -> Training:
        layers = [line.told.layer for line in lines]
        found = [line.judgement for line in lines]
        best = rules.best(layers, found, [line.told.split_cosine for line in lines])
        near = [line.direction for line in lines if line.told.layer == best]
        return Training(
            method=asked.method,
            read=asked.read,
            site=asked.site,
            special_tokens=asked.has_special,
            pairs=len(asked.positives) if asked.is_paired else None,
            positives=len(asked.positives),
            negatives=len(asked.negatives),
            held_out=sum(examples.is_held_out),
            holdout=asked.holdout,
            seed=asked.seed,
            layers=[line.told for line in lines],
            best_layer=best,
            equal_layers=rules.equals(best, layers, found),
            neighbours=await self._neighbours(asked.name, near),
        )

    async def _neighbours(self, name: str, near: Sequence[Direction]) -> list[FeatureNeighbour]:
        """The nearest features of the attached SAEs; none where no SAE has the width of the directions."""
        if not near:
            return []
        try:
            found = await self._vectors.near_features(name, near, NEIGHBOURS)
        except Refusal as refusal:
            if refusal.code != "VECTOR_MISMATCH":
                raise
            return []
        return [FeatureNeighbour(one.sae_id, one.feature_idx, one.cosine) for one in found][
            :NEIGHBOURS
        ]

    async def _stored(
        self,
        asked: TrainingRequest,
        resident: Resident,
        lines: Sequence[_Line],
        training: Training,
    ) -> VectorRecord | ProbeRecord:
        directions = tuple(line.direction for line in lines)
        hint = resident.row.name
        source = VectorSource(kind="trained", format=asked.method)
        if asked.is_probe:
            biases = tuple(line.bias for line in lines)
            probe = ReadProbe(
                format=asked.method, directions=directions, biases=biases, model_hint=hint
            )
            return await self._probes.add(asked.name, probe, source, training)
        read = ReadVector(format=asked.method, directions=directions, model_hint=hint)
        return await self._vectors.add(asked.name, read, source, training)


def _measurement(asked: TrainingRequest, texts: Sequence[NamedText]) -> Measurement:
    """The short measurement that ends a training, by a probe of its own texts."""
    positives = len(asked.positives)
    return Measurement(
        positives=texts[:positives],
        negatives=texts[positives:],
        words=(),
        prompts=None,
        layers=None,
        strengths=None,
        tokens=MEASURED_TOKENS,
        temperature=1.0,
        seed=asked.seed,
        random_directions=MEASURED_RANDOM,
        client=asked.client,
        effort=levers.SHORT,
    )


def _part(report: Report, begin: float, end: float) -> Report:
    """Reports a part of the work as the share of the whole from `begin` to `end`."""

    def report_part(share: float, message: str) -> None:
        report(begin + (end - begin) * share, message)

    return report_part


async def _line(
    asked: TrainingRequest, resident: Resident, layer: int, states: bytes, examples: Examples
) -> _Line:
    """Fit the direction of one layer.

    Raises:
        Refusal: MODEL_NOT_LOADED, ENGINE_UNAVAILABLE; INVALID_PARAMETER where the examples of both groups are alike.
    """
    engine, _ = resident.running()
    question = m.Fit(
        layer=layer,
        states=states,
        is_positive=list(examples.is_positive),
        is_held_out=list(examples.is_held_out),
        is_paired=asked.is_paired,
        method="probe" if asked.is_probe else asked.method,
        seed=asked.seed,
    )
    fitted = await engine.ask(question)
    direction = Direction(layer, asked.site, fitted.direction)
    found = rules.judged(examples, fitted.scores)
    shuffled = rules.aucs(examples, fitted.shuffled)
    random = rules.aucs(examples, fitted.random)
    told = TrainedLayer(
        layer=layer,
        auc_held_out=found.auc,
        auc_low=found.low,
        auc_high=found.high,
        separation=found.separation,
        norm=direction.norm,
        norm_over_residual=direction.norm / fitted.residual_norm,
        split_cosine=fitted.split_cosine,
        auc_shuffled=shuffled[0] if shuffled else None,
        auc_random=random[0] if random else None,
        auc_shuffled_most=shuffled[1] if shuffled else None,
    )
    return _Line(direction, fitted.bias, found, told)


def _examples(asked: TrainingRequest) -> Examples:
    """Which examples are positive, and which are held out: of pairs both, or none."""
    counts = len(asked.positives), len(asked.negatives)
    names = ("pairs", "pairs") if asked.is_paired else ("positives", "negatives")
    held = [
        held_out(count, asked.holdout, asked.seed, name)
        for count, name in zip(counts, names, strict=True)
    ]
    return Examples(
        [True] * counts[0] + [False] * counts[1],
        [place in out for count, out in zip(counts, held, strict=True) for place in range(count)],
    )


def _places(asked: TrainingRequest) -> m.Places:
    if isinstance(asked.read, TextIndex):
        return m.Places("index", asked.read.index, asked.has_special)
    how: Any = "completion" if asked.read == COMPLETION else asked.read
    return m.Places(how, has_special=asked.has_special)


def _named(example: Example, asked: TrainingRequest) -> NamedText:
    """The text of an example as a prompt. With `mean_completion` its completion is located: the text behind the
    `prompt`, or the last message of a conversation.

    Raises:
        Refusal: INVALID_PARAMETER where the completion is not known, or a conversation continues a prompt.
    """
    text, prompt = example.text, example.prompt
    is_located = asked.read == COMPLETION
    if prompt is not None and not isinstance(text, str):
        raise _wrong(example.place, "must be a text, because it continues a prompt")
    if isinstance(prompt, str):
        whole = f"{prompt}{text}"
        contents = (Span("assistant", len(prompt), len(whole)),) if is_located else ()
        return NamedText(example.place, m.Text(whole, contents=contents))
    if prompt is not None:
        text = (*prompt, {"role": "assistant", "content": text})
    if is_located and (isinstance(text, str) or text[-1]["role"] != "assistant"):
        why = f"{COMPLETION} needs a prompt, or a conversation that ends with the assistant"
        raise _wrong(example.place, why)
    return NamedText(example.place, prompt_of(text, asked.client, is_located=is_located))


def _wrong(place: str, why: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", f"{place}: {why}", param=place)


def _check_examples(asked: TrainingRequest) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a pair of equal texts, and for groups of the same texts.
    """
    if asked.is_paired:
        for positive, negative in zip(asked.positives, asked.negatives, strict=True):
            if positive.text == negative.text:
                why = f"{negative.place}: is the same text as {positive.place}"
                raise Refusal("INVALID_PARAMETER", why, param=negative.place)
    groups = [[one.text for one in group] for group in (asked.positives, asked.negatives)]
    check_groups(*groups)
