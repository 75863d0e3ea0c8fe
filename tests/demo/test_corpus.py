"""The demo corpus: seeded, varied, and its topics distinct."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest
from tools.demo.chats import json_chat
from tools.demo.corpus import (
    BOS,
    EOS,
    HELD_OUT_SEED,
    TOPIC_WORDS,
    TRAIN_SEED,
    CorpusDocument,
    has_topic,
    held_out,
    render,
    take,
    topic_share,
)
from tools.demo.grammar import TOPICS, StoryRequest, story
from tools.demo.topics import Topic

WORD = re.compile(r"[a-z]+")


def phrases(topic: Topic) -> set[str]:
    """Every word of a topic's tables."""
    lines = (
        *topic.places,
        *topic.things,
        *topic.roles,
        *topic.friends,
        *topic.deeds,
        *topic.wishes,
        *topic.troubles,
        *topic.fixes,
        *topic.views,
        *(text for pair in topic.meanings for text in pair),
    )
    return set(WORD.findall(" ".join(re.sub(r"\{.*?\}", " ", line.lower()) for line in lines)))


@pytest.fixture(scope="module")
def documents() -> list[CorpusDocument]:
    return take(TRAIN_SEED, 4000)


def test_a_seed_fixes_the_corpus(documents: list[CorpusDocument]) -> None:
    assert take(TRAIN_SEED, 200) == documents[:200]
    assert take(HELD_OUT_SEED, 200) != documents[:200]


def test_held_out_documents_are_not_training_documents(documents: list[CorpusDocument]) -> None:
    training = {document.text for document in documents}
    assert not training & {document.text for document in held_out(500, documents)}


def test_a_topics_words_are_in_no_other_topics_tables() -> None:
    for name, words in TOPIC_WORDS.items():
        for other in TOPICS.values():
            assert other.name == name or not words & phrases(other), (name, other.name)


def test_every_topic_is_told_and_a_story_has_the_words_of_its_topic(
    documents: list[CorpusDocument],
) -> None:
    for name in TOPICS:
        own = [doc.text for doc in documents if doc.topic == name and doc.kind == "story"]
        assert len(own) > 20
        assert topic_share(own, name) > 0.98


def test_a_random_story_is_seldom_about_the_sea(documents: list[CorpusDocument]) -> None:
    stories = [document.text for document in documents if document.kind == "story"]
    for name in TOPICS:
        assert topic_share(stories, name) < 0.15


def test_topic_words_count_as_whole_words_only() -> None:
    assert has_topic("She saw the SEA.", "sea")
    assert not has_topic("Every season has its search.", "sea")
    assert topic_share(["the sea", "the moon"], "sea") == 0.5
    assert topic_share([], "sea") == 0.0


def test_json_answers_are_valid_objects(rng: random.Random) -> None:
    for _ in range(300):
        messages, _topic = json_chat(rng)
        assert isinstance(json.loads(messages[-1]["content"]), dict)


def test_stories_are_varied_and_well_formed(documents: list[CorpusDocument]) -> None:
    assert len({document.text for document in documents}) > 0.95 * len(documents)
    assert not any("{" in doc.text for doc in documents if doc.kind != "json_chat")
    for document in documents:
        assert document.text.startswith(BOS)
        assert document.text.endswith(EOS)


def test_a_story_keeps_to_what_was_asked(rng: random.Random) -> None:
    for _ in range(50):
        told = story(rng, StoryRequest(topic="sea", name="Mia", first_person=False))
        assert told.topic == "sea"
        assert "Mia" in told.text
        assert not re.search(r"\bI (was|felt|wanted)\b", told.text.split('"')[0])


def test_render_ends_every_turn() -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    assert render(chat) == "<s><|user|>Hi</s><|assistant|>Hello!</s>"
    assert render(chat[:1], add_generation_prompt=True) == "<s><|user|>Hi</s><|assistant|>"


def test_the_corpus_and_the_constants_need_no_tensor_library() -> None:
    code = (
        "import sys, steerserve.demo, tools.demo.corpus;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)
