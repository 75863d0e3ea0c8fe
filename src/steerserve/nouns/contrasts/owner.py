"""Contrasts: which features of an attached SAE tell two groups of texts apart. The texts are read as parts of a job."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from msgspec import UNSET

from steerserve import messages as m
from steerserve.control.inference.texts import NamedText, TextReader, held_out, of_part, prompt_of
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment, Resident, check_held
from steerserve.errors import Refusal
from steerserve.nouns.contrasts import rules
from steerserve.nouns.contrasts.form import Contrast, ContrastedFeature, ContrastedTexts
from steerserve.nouns.contrasts.rules import Contrasted, Pooled
from steerserve.nouns.features.owner import Features
from steerserve.parts.pool.form import POOL, Pool
from steerserve.parts.pool.form import Pooled as PooledText
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.saes.attachment import SaeChoice

KIND = "contrast"
PROMOTED_SHOWN = 3
READ_SHARE = 0.95
"""The share of the progress of a job that is the reading of the texts."""


@dataclass(frozen=True, slots=True)
class ContrastRequest:
    """The texts of a contrast, and how they are read and compared. `has_special` counts position 0 and special tokens
    too. With `has_examples` each feature has its strongest example. `client` names who asks."""

    positives: tuple[str | Conversation, ...]
    negatives: tuple[str | Conversation, ...]
    choice: SaeChoice
    pool: Literal["max", "mean", "last"]
    top: int
    holdout: float
    seed: int
    min_share: float
    has_special: bool
    has_examples: bool
    client: str


class Contrasts:
    """Starts contrasts on the resident model; it never loads one."""

    def __init__(
        self, conductor: Conductor, reader: TextReader, features: Features, jobs: Jobs
    ) -> None:
        self._conductor = conductor
        self._reader = reader
        self._features = features
        self._jobs = jobs

    def start(self, asked: ContrastRequest) -> Job:
        """Begin a contrast. Its job is refused what a scoring request is refused, with the name of the text; it is
        refused INVALID_PARAMETER for a text of which no position counts, and MODEL_NOT_LOADED or SAE_NOT_ATTACHED when
        the model or the SAE goes meanwhile.

        Raises:
            Refusal: INVALID_PARAMETER for equal groups; MODEL_NOT_LOADED, SAE_NOT_ATTACHED, TOO_MANY_JOBS.
        """
        rules.check_groups(asked.positives, asked.negatives)
        resident = self._conductor.loaded()
        attached = asked.choice.first(list(resident.attachments.values()))
        return self._jobs.start(KIND, partial(self._run, asked, resident, attached))

    # ------------------------------------------------------------- inside

    async def _run(
        self, asked: ContrastRequest, resident: Resident, attached: Attachment, report: Report
    ) -> Contrast:
        texts = [
            NamedText(f"{group}[{i}]", prompt_of(text, asked.client))
            for group, given in (("positives", asked.positives), ("negatives", asked.negatives))
            for i, text in enumerate(given)
        ]
        take = of_part(POOL)
        pool = Pool(attached.key, asked.pool, asked.has_special)
        read = await self._reader.read(
            texts,
            resident,
            m.Request(goal=m.Score(), prompts=(), client=KIND, parts=POOL.ask(pool)),
            take,
            check=lambda: check_held(resident, [attached]),
            told=lambda count: report(
                READ_SHARE * count / len(texts), f"{count} of {len(texts)} texts are read"
            ),
        )
        pooled = [pooled_values(one, text.name) for one, text in zip(read, texts, strict=True)]
        count = len(asked.positives)
        positives, held_positives = _split(pooled[:count], asked, "positives")
        negatives, held_negatives = _split(pooled[count:], asked, "negatives")
        best, compared = await asyncio.to_thread(
            rules.contrast,
            positives,
            negatives,
            held_positives,
            held_negatives,
            top=asked.top,
            min_share=asked.min_share,
        )
        held = len(held_positives) + len(held_negatives)
        return Contrast(
            sae_id=attached.sae_id,
            layer=attached.layer,
            texts=ContrastedTexts(count, len(texts) - count, held),
            features=await self._described(best, asked, resident, attached),
            compared=compared,
        )

    async def _described(
        self,
        best: Sequence[Contrasted],
        asked: ContrastRequest,
        resident: Resident,
        attached: Attachment,
    ) -> list[ContrastedFeature]:
        check_held(resident, [attached])
        labels = await self._features.labels(attached.sae_id)
        indices = [one.index for one in best]
        effects = await self._features.effects(attached, indices, PROMOTED_SHOWN)
        examples = (
            await self._features.examples(attached.sae_id, indices) if asked.has_examples else None
        )
        promotes: list[list[str] | None] = [[effect.token for effect in up] for up, _ in effects]
        return [
            ContrastedFeature(
                index=one.index,
                label=labels.get(one.index),
                auc=one.found.auc,
                auc_low=one.found.low,
                auc_high=one.found.high,
                auc_held_out=one.auc_held_out,
                mean_positive=one.found.mean_positive,
                mean_negative=one.found.mean_negative,
                share_positive=one.found.share_positive,
                share_negative=one.found.share_negative,
                p_corrected=one.p_corrected,
                promotes=tokens,
                example=UNSET if examples is None else examples.get(one.index),
            )
            for one, tokens in zip(best, promotes or [None] * len(best), strict=True)
        ]


def _split(
    pooled: Sequence[Pooled], asked: ContrastRequest, group: str
) -> tuple[list[Pooled], list[Pooled]]:
    """The texts of a group that are compared, and those that are held out. The seed decides which."""
    held = held_out(len(pooled), asked.holdout, asked.seed, group)
    compared = [one for place, one in enumerate(pooled) if place not in held]
    return compared, [pooled[place] for place in sorted(held)]


def pooled_values(answer: PooledText, name: str) -> Pooled:
    """The activations that are not 0 of the text with this name.

    Raises:
        Refusal: INVALID_PARAMETER where no position of the text counts.
    """
    if not answer.positions:
        why = "no token is left without position 0 and special tokens"
        raise Refusal("INVALID_PARAMETER", why, param=name)
    count = len(answer.features) // 4
    features = struct.unpack(f"<{count}I", answer.features)
    return dict(zip(features, struct.unpack(f"<{count}f", answer.values), strict=True))
