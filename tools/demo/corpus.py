"""The demo corpus: seeded documents, their split into training and held-out ones, and the measure of a topic in a text.

This module owns the form of a training document and the form of a chat as text (`render`; the shipped chat template has
the same form). It is pure Python, without tensors and tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tools.demo.chats import Message, json_chat, question_chat, story_chat
from tools.demo.grammar import TOPICS, StoryRequest, pick_topic, story

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
ROLE_TOKENS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS = (BOS, EOS, PAD, *ROLE_TOKENS.values())

TRAIN_SEED = 1
HELD_OUT_SEED = 2

TOPIC_WORDS: dict[str, frozenset[str]] = {
    name: frozenset(topic.words) for name, topic in TOPICS.items()
}

_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One training document: `text` is complete, from BOS to the last EOS. `written` is what a person would send: a
    story, or the messages of a chat."""

    kind: str
    topic: str | None
    text: str
    written: str | list[Message]


def render(messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
    """A chat as text: BOS, then for each message its role token, the content and EOS."""
    turns = (f"{ROLE_TOKENS[turn['role']]}{turn['content']}{EOS}" for turn in messages)
    tail = ROLE_TOKENS["assistant"] if add_generation_prompt else ""
    return BOS + "".join(turns) + tail


def _document(rng: random.Random) -> CorpusDocument:
    """One document of a random kind."""
    kind = rng.random()
    if kind < 0.4:
        length = rng.choices(("normal", "short", "long"), (0.85, 0.08, 0.07))[0]
        made = story(rng, StoryRequest(topic=pick_topic(rng), length=length))
        return CorpusDocument("story", made.topic, f"{BOS}{made.text}{EOS}", made.text)
    if kind < 0.84:
        messages, topic = story_chat(rng)
        return CorpusDocument("story_chat", topic, render(messages), messages)
    if kind < 0.93:
        messages, name = question_chat(rng)
        return CorpusDocument("question_chat", name, render(messages), messages)
    messages, topic = json_chat(rng)
    return CorpusDocument("json_chat", topic, render(messages), messages)


def documents(seed: int) -> Iterator[CorpusDocument]:
    """Yield the documents of a seed, without end."""
    rng = random.Random(seed)
    while True:
        yield _document(rng)


def take(seed: int, count: int, skip: frozenset[str] = frozenset()) -> list[CorpusDocument]:
    """The first `count` documents of a seed whose text is not in `skip`."""
    chosen: list[CorpusDocument] = []
    for document in documents(seed):
        if document.text not in skip:
            chosen.append(document)
        if len(chosen) >= count:
            return chosen
    return chosen


def held_out(count: int, training: Iterable[CorpusDocument]) -> list[CorpusDocument]:
    """`count` documents of the held-out seed, none of which is a training document."""
    return take(HELD_OUT_SEED, count, frozenset(document.text for document in training))


def has_topic(text: str, topic: str) -> bool:
    """Whether the text has at least one word of the topic as a whole word."""
    return not TOPIC_WORDS[topic].isdisjoint(_WORD.findall(text.lower()))


def topic_share(texts: Sequence[str], topic: str) -> float:
    """The share of texts with at least one word of the topic; 0 for no texts."""
    return sum(has_topic(text, topic) for text in texts) / max(len(texts), 1)
