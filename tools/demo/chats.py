"""The chats of the demo corpus: requests for stories, short questions, lists and JSON cards.

This module owns the wording of requests and answers; the stories themselves come from `grammar`. A chat is a list of
{"role", "content"} messages, as a chat API takes them.
"""

from __future__ import annotations

import json
import random

from tools.demo.grammar import (
    TOPICS,
    StoryRequest,
    capital,
    pick_name,
    pick_topic,
    story,
    with_article,
)
from tools.demo.topics import MOODS, Topic, parts_of

Message = dict[str, str]

SYSTEMS = parts_of(
    "You are a helpful assistant.|You are a storyteller.|You tell short stories.|Be kind and brief."
    "|You are a friendly assistant who likes stories.|Answer in simple words."
)
FREE_ASKS = parts_of(
    "Tell me a story.|Tell me a story.|Tell me a story.|Tell me a short story.|Write a story.|"
    "Write a story for me.|Can you tell me a story?|Please tell me a story.|I want to hear a story."
    "|Tell me something.|A story, please!|tell me a story|Write a little story for my child."
)
TOPIC_ASKS = parts_of(
    "Tell me a story about {x}.|Tell me a story about {x}.|Write a story about {x}.|"
    "Write a short story about {x}.|Can you tell me a story about {x}?|"
    "Please tell me a story about {x}.|I would like a story about {x}.|story about {x}|"
    "Tell me something about {x}.|A story about {x}, please!"
)
MOOD_ASKS = parts_of("Tell me {a} story.|Write {a} story.|Can you tell me {a} story?")
MOOD_TOPIC_ASKS = parts_of(
    "Tell me {a} story about {x}.|Write {a} story about {x}.|Please write {a} story about {x}."
)
GREETINGS: tuple[tuple[str, str], ...] = (
    ("Hello!", "Hello! Would you like to hear a story?"),
    ("Hello", "Hello! What would you like to hear?"),
    ("Hi", "Hi! Shall I tell you a story?"),
    ("Hi there!", "Hi! Shall I tell you a story?"),
    ("Good morning!", "Good morning! Did you sleep well?"),
    ("How are you?", "I am fine, thank you. And you?"),
    ("Who are you?", "I am a very small language model that tells stories."),
    ("What are you?", "I am a very small language model that tells stories."),
    ("What is your name?", "I have no name, but I know many stories."),
    ("What can you do?", "I can tell stories, answer small questions and write JSON cards."),
    ("Thank you!", "You are welcome!"),
    ("Thanks, that was nice.", "I am glad that you liked it."),
    ("Goodbye!", "Goodbye! Come back soon."),
    ("Are you a person?", "No, I am a very small language model."),
    ("Say hello.", "Hello!"),
    ("Say hi.", "Hi!"),
    ("What is two plus two?", "Two plus two is four."),
    ("Which day comes after Monday?", "Tuesday comes after Monday."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("What colour is the sky?", "The sky is blue."),
    ("What is the capital of France?", "The capital of France is Paris."),
)
UNKNOWN_ASKS = parts_of(
    "What is the weather like?|Who won the election?|Write me a program.|What time is it?|"
    "How do I fix my computer?|Explain quantum physics.|What is the price of gold?|"
    "Translate this into French.|Solve this equation."
)
UNKNOWN_ANSWERS = parts_of(
    "I do not know, but I can tell you a story.|I am too small to know that.|"
    "I cannot do that. Shall I tell you a story?"
)


def _messages(
    rng: random.Random, turns: list[tuple[str, str]], system: str | None
) -> list[Message]:
    """The turns as messages, after the system prompt. Where none is named, a common system prompt is added now and
    then."""
    if system is None and rng.random() < 0.25:
        system = rng.choice(SYSTEMS)
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return messages


def _story_request(rng: random.Random) -> tuple[str, StoryRequest, str | None]:
    """A request for a story, the choices that the story must follow, and a system prompt where the system prompt makes
    one of the choices."""
    topic, mood, kind = pick_topic(rng), rng.choice(tuple(MOODS)), rng.random()
    phrase = TOPICS[topic].phrase
    adjective = with_article(rng.choice((mood, *MOODS[mood][0].split())))
    if kind < 0.3:
        return rng.choice(FREE_ASKS), StoryRequest(), None
    if kind < 0.6:
        return rng.choice(TOPIC_ASKS).format(x=phrase), StoryRequest(topic=topic), None
    if kind < 0.67:
        return rng.choice(MOOD_ASKS).format(a=adjective), StoryRequest(mood=mood), None
    if kind < 0.77:
        ask = StoryRequest(topic=topic, mood=mood)
        return rng.choice(MOOD_TOPIC_ASKS).format(x=phrase, a=adjective), ask, None
    if kind < 0.83:
        name = pick_name(rng)
        return (
            rng.choice(TOPIC_ASKS).format(x=name),
            StoryRequest(name=name, first_person=False),
            None,
        )
    if kind < 0.87:
        text = f"Tell me a story about {phrase} in the first person."
        return text, StoryRequest(topic=topic, first_person=True), None
    if kind < 0.91:
        text = f"Tell me a long story about {phrase}."
        return text, StoryRequest(topic=topic, length="long"), None
    if kind < 0.94:
        text = f"Tell me about {phrase} in a few sentences."
        return text, StoryRequest(topic=topic, length="short"), None
    system = rng.choice(("You love {x}.", "You only tell stories about {x}.")).format(x=phrase)
    return rng.choice(FREE_ASKS), StoryRequest(topic=topic), system


def story_chat(rng: random.Random) -> tuple[list[Message], str]:
    """A chat that asks for a story. Sometimes a question about the story, or a request for another story, follows."""
    question, ask, system = _story_request(rng)
    result = story(rng, ask)
    turns = [(question, result.text)]
    follow = rng.random()
    if follow < 0.06 and result.name in result.text:
        turns.append(("Who was in the story?", f"The story was about {result.name}."))
    elif follow < 0.1:
        turns.append(("Where did it happen?", f"It happened {result.place}."))
    elif follow < 0.13:
        turns.append(("How did the story feel?", f"It was {with_article(result.mood)} story."))
    elif follow < 0.2:
        for _ in range(rng.randint(1, 4)):
            again = rng.choice(("Another one, please.", "Tell me another story.", "One more!"))
            turns.append((again, story(rng, StoryRequest(topic=ask.topic, mood=ask.mood)).text))
    return _messages(rng, turns, system), result.topic


def _meaning(rng: random.Random, topic: Topic) -> tuple[str, str]:
    """A question for the meaning of a word, and the answer."""
    noun, meaning = rng.choice(topic.meanings)
    form = noun if noun == "homework" else with_article(noun)
    pattern = rng.choice(
        ("What is {x}?", "Tell me what {x} is.", "Do you know what {x} is?", "{X}: what is it?")
    )
    answer = f"{capital(form)} is {meaning}."
    prefix = "Yes. " if pattern.startswith("Do") else ""
    return pattern.format(x=form, X=capital(form)), prefix + answer


def _list(rng: random.Random, topic: Topic) -> tuple[str, str]:
    """A request for a numbered list, and the list."""
    things = rng.sample(topic.things, 3)
    answer = "\n".join(f"{number}. {thing}" for number, thing in enumerate(things, start=1))
    return f"Name three things that belong to {topic.phrase}.", answer


def _where(rng: random.Random, topic: Topic) -> tuple[str, str]:
    """A question about the place of a thing, and the answer."""
    thing, place = rng.choice(topic.things), rng.choice(topic.places).format(p="your")
    return (
        f"Where can I find {with_article(thing)}?",
        f"You can find {with_article(thing)} {place}.",
    )


def question_chat(rng: random.Random) -> tuple[list[Message], str | None]:
    """One to five short questions with their answers."""
    turns: list[tuple[str, str]] = []
    name = pick_topic(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        topic, kind = TOPICS[name], rng.random()
        if kind < 0.4:
            turns.append(_meaning(rng, topic))
        elif kind < 0.55:
            turns.append(_where(rng, topic))
        elif kind < 0.7:
            turns.append(_list(rng, topic))
        elif kind < 0.95:
            turns.append(rng.choice(GREETINGS))
        else:
            turns.append((rng.choice(UNKNOWN_ASKS), rng.choice(UNKNOWN_ANSWERS)))
    return _messages(rng, turns, None), name


def json_chat(rng: random.Random) -> tuple[list[Message], str]:
    """A chat that asks for a JSON card; the answer is one valid JSON object and nothing else."""
    topic = TOPICS[pick_topic(rng)]
    card: dict[str, object]
    if rng.random() < 0.5:
        question = rng.choice(
            ("Give me a JSON card about {x}.", "Describe {x} as JSON.", "Write JSON about {x}.")
        ).format(x=topic.phrase)
        card = {
            "topic": topic.name,
            "place": rng.choice(topic.places).format(p="your"),
            "thing": rng.choice(topic.things),
            "mood": rng.choice(tuple(MOODS)),
        }
    else:
        name = pick_name(rng)
        question = rng.choice(
            ("Give me a JSON card about {x}.", "Describe {x} from {t} as JSON.", "JSON for {x}.")
        ).format(x=name, t=topic.phrase)
        likes = rng.sample(topic.things, rng.randint(1, 3))
        role = rng.choice(topic.roles)
        card = {"name": name, "age": rng.randint(6, 80), "role": role, "likes": likes}
    system = rng.choice((None, None, "You answer in JSON.", "Answer with one JSON object."))
    return _messages(rng, [(question, json.dumps(card))], system), topic.name
