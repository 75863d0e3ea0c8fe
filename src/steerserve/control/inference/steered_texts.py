"""Texts that a lever steers, written as parts of a job, each with its distance from the model without steering."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from steerserve import messages as m
from steerserve.control.inference.texts import (
    TEXTS_AT_ONCE,
    NamedText,
    Take,
    TextReader,
    prompt_of,
)
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.nouns.effects import rules
from steerserve.nouns.effects.rules import Written
from steerserve.parts.divergence.form import DIVERGENCE, Divergence
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.steering import ladder
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers, Placed

TEXTS_MAXIMUM = 4096
"""The most texts that one job writes."""
LOGITS_KEPT = 256 << 20
"""The most bytes of logits that the engine keeps at once for texts of a job, as float32."""


def check_texts(texts: int) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for more texts than a job writes.
    """
    if texts > TEXTS_MAXIMUM:
        why = f"strengths: {texts} texts would be written; at most {TEXTS_MAXIMUM} are"
        details: dict[str, object] = {"texts": texts, "maximum": TEXTS_MAXIMUM}
        raise Refusal("INVALID_PARAMETER", why, param="strengths", **details)


@dataclass(frozen=True, slots=True)
class Writing:
    """How texts are written: what they continue, how many `choices` each prompt gets, how many tokens each text gets,
    and how a token is drawn. `modifiers` are those of the lever. `words` has the tokens of target and of control
    words, where they are compared. `sites`, each with its layer, are read of the texts without steering. `check` is
    asked before each part of the texts."""

    resident: Resident
    prompts: Sequence[NamedText]
    tokens: int
    temperature: float
    seed: int
    check: Callable[[], object]
    modifiers: Modifiers = NO_MODIFIERS
    words: Sequence[Sequence[Sequence[int]]] = ()
    choices: int = 1
    sites: Sequence[tuple[str, int]] = ()

    @property
    def at_once(self) -> int:
        """The prompts that are continued at once, so that the engine keeps a bounded number of logits for them."""
        _, facts = self.resident.running()
        logits = 4 * facts.vocabulary * self.tokens * self.choices
        return max(1, min(TEXTS_AT_ONCE, LOGITS_KEPT // logits))


async def write(
    reader: TextReader,
    how: Writing,
    lever: Placed,
    strength: float,
    told: Callable[[int], None] | None = None,
) -> list[Written]:
    """The texts of all prompts with a lever at one strength, those of the first prompt first. `told` gets the number of
    texts that are written so far.

    Raises:
        Refusal: those of an inference request, with the name of the prompt, and those of `how.check`;
            NON_FINITE_LOGITS names the strength.
    """
    values, edits = ladder.at(lever, strength)
    added = {key: dict(features) for key, features in values.items()}
    plan = m.Overlay(None, added, edits, how.modifiers)
    sampling = m.Sampling(temperature=how.temperature, max_tokens=how.tokens, seed=how.seed)
    words = [[list(one) for one in group] for group in how.words]
    divergence = Divergence(words, list(how.sites))
    try:
        return await reader.read(
            how.prompts,
            how.resident,
            m.Request(
                goal=m.Generate(sampling=sampling, n=how.choices),
                prompts=(),
                plan=plan,
                parts=DIVERGENCE.ask(divergence),
            ),
            _take_written,
            check=how.check,
            told=told,
            at_once=how.at_once,
            choices=how.choices,
        )
    except Refusal as refusal:
        if refusal.code != "NON_FINITE_LOGITS":
            raise
        why = f"at the strength {strength:g} {refusal.message}"
        details = refusal.details | {"strength": strength}
        raise Refusal(refusal.code, why, param="strengths", **details) from None


def _take_written() -> Take[Written]:
    """Takes whole texts with their distances."""
    texts: dict[int, str] = {}

    def take_piece(outcome: m.Outcome) -> Written | None:
        if not isinstance(outcome, m.Piece):
            return None
        texts[outcome.choice] = texts.get(outcome.choice, "") + outcome.text
        found = DIVERGENCE.read(outcome.parts)
        if found is None:
            return None
        read = found.tokens, found.divergences, found.likelihoods, found.words, found.states
        return Written(texts[outcome.choice], *read)

    return take_piece


def prompts_or_stock(
    prompts: Sequence[str | Conversation] | None,
    client: str,
    *,
    is_chat: bool,
    is_located: bool = False,
) -> list[NamedText]:
    """The prompts of a request, or eight of the service's own: questions for a model with a chat template, and
    beginnings of texts for another. With `is_located` the contents of messages are found."""
    if prompts is None:
        questions = [({"role": "user", "content": text},) for text in rules.STOCK_QUESTIONS]
        prompts = questions if is_chat else list(rules.STOCK_TEXTS)
    return [
        NamedText(f"prompts[{place}]", prompt_of(one, client, is_located=is_located))
        for place, one in enumerate(prompts)
    ]


def normal_numbers(seed: int) -> Callable[[], float]:
    """Draws the numbers of random directions. The same seed gives the same directions."""
    numbers = random.Random(f"{seed} directions")  # noqa: S311 -- repeatable
    return partial(numbers.gauss, 0.0, 1.0)
