"""The tables from which the demo corpus is made: fourteen topics, the moods and the names.

This module owns only the vocabulary; the module `grammar` turns the vocabulary into text. Every phrase of a topic is in
the past tense or the bare infinitive, so that one table serves first and third person: {o} and {p} stand for the object
pronoun and the possessive pronoun of the hero, {thing} for the thing of the story.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic's phrases. `words` are its distinctive words: no other table contains them."""

    name: str
    phrase: str
    words: tuple[str, ...]
    places: tuple[str, ...]
    things: tuple[str, ...]
    roles: tuple[str, ...]
    friends: tuple[str, ...]
    deeds: tuple[str, ...]
    wishes: tuple[str, ...]
    troubles: tuple[str, ...]
    fixes: tuple[str, ...]
    views: tuple[str, ...]
    meanings: tuple[tuple[str, str], ...]


def parts_of(text: str, separator: str = "|") -> tuple[str, ...]:
    """The stripped parts of a table line, without empty parts."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def make_topic(name: str, phrase: str, words: str, meanings: dict[str, str], **parts: str) -> Topic:
    """A topic from its table lines."""
    return Topic(
        name=name,
        phrase=phrase,
        words=tuple(words.split()),
        meanings=tuple(meanings.items()),
        **{key: parts_of(text) for key, text in parts.items()},
    )


NAMES_SHE = parts_of(
    "Mia Ada Nora Lena Zoe Ivy Ruth Clara Elsa Maya Tara Hana Rosa Lucy Anna Eva Nina Olga Dora "
    "Greta Amy Vera Leah Yara Sara Iris Flora Tess Kate Luna",
    " ",
)
NAMES_HE = parts_of(
    "Tom Ben Max Leo Sam Omar Hugo Otto Finn Noah Paul Jan Karl Ravi Theo Adam Luke Eric Ivan "
    "Milo Felix Oscar Emil Victor Jack Ali Henry Simon Peter Marco",
    " ",
)

MOODS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "happy": (
        "happy glad cheerful merry",
        parts_of(
            "{S} woke up with a smile. | Everything made {o} laugh that day. | {S} was so {a} that "
            "{s} could not stand still. | It was the best day of the year, and {S} felt {a}."
        ),
        parts_of(
            "{S} laughed all the way home. | It was the happiest day of {p} life. | {S} smiled for "
            "a whole week. | Never before had {S} been so {a}."
        ),
    ),
    "sad": (
        "sad gloomy unhappy sorrowful",
        parts_of(
            "{S} was {a} and did not want to talk. | There were tears in {p} eyes. | Nothing could "
            "cheer {o} up. | {S} missed {p} old friend very much and felt {a}."
        ),
        parts_of(
            "{S} wept quietly and went home alone. | The tears came back that night. | {S} was "
            "still {a}, but a little less than before. | Some things are lost forever, {S} thought."
        ),
    ),
    "scary": (
        "afraid scared frightened terrified",
        parts_of(
            "{S} was {a} and {p} hands were shaking. | Something was watching {o} from the dark. | "
            "A strange whisper made {o} shiver. | {S} heard a scream and felt {a}."
        ),
        parts_of(
            "{S} ran away and never came back. | The whisper followed {o} all the way home. | "
            "Even years later {S} was {a} of the dark. | Nobody ever found out what it was."
        ),
    ),
    "calm": (
        "calm peaceful quiet gentle",
        parts_of(
            "Everything was {a}, and nobody was in a hurry. | {S} took a slow, deep breath. | It "
            "was a {a} hour and {S} had plenty of time. | {S} felt {a} and closed {p} eyes."
        ),
        parts_of(
            "Slowly the evening came, {a} and mild. | {S} slept deeply that night. | All was {a} "
            "again. | {S} breathed out and felt at peace."
        ),
    ),
    "funny": (
        "silly funny ridiculous clumsy",
        parts_of(
            "{S} wore {p} trousers on {p} head, which looked {a}. | {S} tripped over {p} own feet "
            "three times. | Everybody giggled at {p} {a} hat. | {S} made a {a} face at everybody."
        ),
        parts_of(
            "Everybody giggled until their bellies hurt. | And {p} hat was still upside down! | It "
            "was the most {a} thing anybody had ever seen. | {S} bowed and fell over again."
        ),
    ),
    "brave": (
        "brave bold fearless daring",
        parts_of(
            "{S} was {a} and feared nothing. | Nobody else dared to go, but {S} did. | {S} raised "
            "{p} chin and stepped forward. | {P} heart was {a}, even when {p} knees were weak."
        ),
        parts_of(
            "From that day on everybody called {o} a hero. | {S} had been {a}, and it was worth "
            "it. | They gave {o} a medal for {p} courage. | {S} never feared anything again."
        ),
    ),
    "angry": (
        "angry furious cross grumpy",
        parts_of(
            "{S} was {a} and slammed the door. | {P} face was red because {s} was so {a}. | {S} "
            "shouted at everybody. | {S} stamped {p} feet and felt {a}."
        ),
        parts_of(
            "In the end {S} said sorry for the shouting. | {S} was {a} for three more days. | "
            "{S} stamped home without a word. | At last {p} anger melted away."
        ),
    ),
    "curious": (
        "curious puzzled inquisitive thoughtful",
        parts_of(
            "{S} asked a hundred questions. | {S} was {a} and wanted to know why. | There was a "
            "riddle on {p} mind. | {S} looked at everything twice and felt {a}."
        ),
        parts_of(
            "Now {S} knew the answer, and had ten new questions. | The riddle was solved. | {S} "
            "wrote it all down in a notebook. | {S} was still {a}, and that was good."
        ),
    ),
}
