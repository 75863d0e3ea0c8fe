"""The story grammar of the demo corpus: a plan, five plots, and the sentences that fill them.

This module owns the way in which the tables of `topics` become a story. It knows nothing of chats, tokens or models.
Every choice comes from the `random.Random` argument, so a seed determines the text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.demo.topics import MOODS, NAMES_HE, NAMES_SHE, Topic, parts_of
from tools.demo.topics_indoors import INDOORS
from tools.demo.topics_outdoors import OUTDOORS

TOPICS: dict[str, Topic] = {topic.name: topic for topic in (*OUTDOORS, *INDOORS)}

TIMES = parts_of(
    "One day|One morning|One evening|One night|Once upon a time|Long ago|Last summer|"
    "On a rainy Monday|On a bright Sunday|On {p} birthday|Early one morning|Late one evening|"
    "Many years ago|Yesterday|On the first day of May|Just after breakfast|At midnight"
)
AGES = parts_of("young|old|tall|little|clever|lazy|strong|poor|rich|famous|lonely|friendly")
COLOURS = parts_of("red|blue|green|yellow|black|white|broken|shiny|heavy|tiny|beautiful|strange")
KIN = parts_of("mother|father|brother|sister|uncle|aunt|grandmother|cousin|best friend|neighbour")
NUMBERS = parts_of("six|seven|eight|nine|ten|eleven|twelve|thirteen")
PROMISES = parts_of(
    "I will help you.|I know what to do.|We can do it together.|Just follow me.|It will be fine.|"
    "Everything has an answer.|I have seen worse.|Give me your hand.|Let me think for a moment."
)
QUESTIONS = parts_of(
    "What are you doing here?|Are you lost?|Why do you look so {a}?|Who are you?|What is that?|"
    "May I come along?|Have you seen my {thing}?"
)

OPENINGS_THIRD = parts_of(
    "{T}, {N} was {place}.|{T}, {N} was {place}.|"
    "{T}, {N} stood {place} with {p} {kin}.|"
    "{T}, a {age} {role} named {N} sat {place}.|"
    "{T}, {N} found {a_colour} {thing} {place}.|"
    "{T}, {N} and {p} {kin} met {place}.|"
    "{T}, {N} the {role} could not sleep.|"
    "There once was a {age} {role} named {N}. Every day {s} worked {place}.|"
    "{N} was a {age} {role} who wanted to {wish}.|"
    '"{question}" said the {friend}. {N} looked up. They were {place}.|'
    "{Place} there lived a {age} {role} called {N}.|"
    "{Place}, {N} waited for {p} {kin}."
)
OPENINGS_FIRST = parts_of(
    "{T}, I was {place}.|{T}, I was {place}.|{T}, I stood {place} with my {kin}.|"
    "{T}, I found {a_colour} {thing} {place}.|"
    "{T}, my {kin} and I met {place}.|"
    "My name is {N}, and I am a {age} {role}.|"
    "When I was {number} years old, I wanted to {wish}.|"
    "Dear diary, today I was {place}.|"
    "I will never forget the day when I was {place}.|"
    '"{question}" said the {friend}. I looked up. We were {place}.'
)

SENTENCES: dict[str, tuple[str, ...]] = {
    "thing": (
        "{S} carried {a_colour} {thing}.",
        "In {p} hand was {a_colour} {thing}.",
        "{S} never went anywhere without {p} {thing}.",
        "{P} {kin} had given {o} {a_colour} {thing}.",
    ),
    "wish": (
        "{S} wanted to {wish}.",
        "All {s} wanted was to {wish}.",
        "{P} greatest wish was to {wish}.",
        '"One day I will {wish}," {s} said.',
        "For {number} years {s} had dreamed about it: to {wish}.",
    ),
    "deed": (
        "{S} {deed}.",
        "First {s} {deed}, and then {s} {deed2}.",
        "With {p} {kin}, {s} {deed}.",
        "{S} {deed} and {deed2}.",
        "In the morning {s} {deed}. In the afternoon {s} {deed2}.",
        "{Number} times {s} {deed}.",
        "{S} {deed} because {s} was {a}.",
    ),
    "deed_again": ("Then {s} {deed3}.", "After that, {s} {deed3}.", "{S} {deed3} as well."),
    "trouble": (
        "But {trouble}.",
        "Suddenly {trouble}.",
        "Then something went wrong: {trouble}.",
        "An hour later {trouble}.",
    ),
    "reaction": (
        '"Oh no!" {s} cried.',
        "{S} felt {a}.",
        "What could {s} do now?",
        "{S} did not know what to do.",
        '"This is bad," said {p} {kin}.',
    ),
    "friend": (
        "Just then {a_friend} came by.",
        "Luckily {a_friend} was near.",
        "{S} asked {a_friend} for help.",
        "Nobody listened, only {a_friend}.",
    ),
    "promise": (
        '"Do not worry," said the {friend}. "{promise}"',
        '"{promise_c}" said the {friend}.',
        'The {friend} smiled at {o}. "{promise}"',
    ),
    "fix": (
        "The {friend} {fix}.",
        "Together with {p} {kin}, the {friend} {fix}.",
        "And so the {friend} {fix}.",
    ),
    "resolve": (
        "At last {s} could {wish}.",
        "{S} thanked the {friend} and {deed3}.",
        "In the end {s} {deed3}.",
        "{S} gave the {friend} {p} {thing} as a present.",
        "From then on the {friend} and {S} were friends.",
    ),
    "search": (
        "{S} looked for the {thing} everywhere.",
        "Where was the {thing}? {S} looked {place}.",
        "The {thing} was gone, and {s} asked {p} {kin}.",
    ),
    "found": (
        "The {friend} had found the {thing}.",
        "In the end the {thing} was {place2}.",
        '"Is this your {thing}?" asked the {friend}. It was!',
    ),
    "talk": (
        '"{question}" asked the {friend}. "I want to {wish}," {said}.',
        '"I am {a}," {said}. "{promise_c}" answered the {friend}.',
        '"Do you like it here?" asked the {friend}. "Yes, very much," {said}.',
        '"Tell me your name," said the {friend}. "I am {name}," {s} said.',
    ),
}

PLOTS: tuple[tuple[str, ...], ...] = (
    ("mood", "wish", "deed", "trouble", "reaction", "friend", "promise", "fix", "resolve", "view"),
    ("deed", "view", "deed_again", "mood", "thing"),
    ("mood", "friend", "talk", "deed", "resolve", "view"),
    ("thing", "deed", "trouble", "search", "friend", "found", "deed_again"),
    ("view", "friend", "talk", "promise", "wish", "deed", "fix", "resolve"),
)


@dataclass(frozen=True, slots=True)
class StoryRequest:
    """The choices that a story must follow. A choice that is None is left to the generator."""

    topic: str | None = None
    mood: str | None = None
    first_person: bool | None = None
    name: str | None = None
    length: str = "normal"


@dataclass(frozen=True, slots=True)
class Story:
    """A finished story and the choices that a later question may be about."""

    text: str
    topic: str
    mood: str
    name: str
    place: str
    friend: str


def with_article(noun: str) -> str:
    """The noun phrase with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def pick_topic(rng: random.Random) -> str:
    """A random topic; all topics are equally likely."""
    return rng.choice(tuple(TOPICS))


def pick_name(rng: random.Random) -> str:
    """A random first name."""
    return rng.choice(NAMES_SHE + NAMES_HE)


def _hero(name: str, first_person: bool) -> dict[str, str]:
    """The slots that name the hero."""
    if first_person:
        own = {"S": "I", "s": "I", "o": "me", "p": "my", "P": "My"}
        return {"name": name, "said": "I said", **own}
    she = name in NAMES_SHE
    subject, object_, whose = ("she", "her", "her") if she else ("he", "him", "his")
    pronouns = {"s": subject, "o": object_, "p": whose, "P": capital(whose)}
    return {"name": name, "S": name, "said": f"said {name}", **pronouns}


def _slots(
    rng: random.Random, topic: Topic, mood: str, hero: dict[str, str], keep: dict[str, str]
) -> dict[str, str]:
    """The text for every slot of the sentences. `keep` holds the texts that an earlier chapter has determined."""
    place, place2 = rng.sample(topic.places, 2)
    deed, deed2, deed3 = rng.sample(topic.deeds, 3)
    thing = keep.get("thing") or rng.choice(topic.things)
    friend = keep.get("friend") or rng.choice(topic.friends)
    slots = dict(hero, thing=thing, friend=friend, a_friend=with_article(friend), place2=place2)
    slots["a"] = rng.choice(MOODS[mood][0].split())
    slots.update(
        role=rng.choice(topic.roles),
        age=rng.choice(AGES),
        kin=rng.choice(KIN),
        number=rng.choice(NUMBERS),
        wish=keep.get("wish") or rng.choice(topic.wishes),
        promise=(promise := rng.choice(PROMISES)),
        promise_c=promise[:-1] + ",",
        a_colour=with_article(rng.choice(COLOURS)),
        deed=deed.format_map(slots),
        deed2=deed2.format_map(slots),
        deed3=deed3.format_map(slots),
        place=place.format_map(slots),
        place2=place2.format_map(slots),
        trouble=rng.choice(topic.troubles).format_map(slots),
        fix=rng.choice(topic.fixes).format_map(slots),
        question=rng.choice(QUESTIONS).format_map(slots),
        T=rng.choice(TIMES).format_map(slots),
    )
    slots["age"] = slots["age"] if slots["age"] != "old" or "old" not in slots["role"] else "tall"
    slots["Place"] = capital(slots["place"])
    slots["Number"] = capital(slots["number"])
    return slots


def _sentence(
    rng: random.Random, block: str, topic: Topic, mood: str, slots: dict[str, str]
) -> str:
    """One filled sentence of a block, with its first letter in upper case."""
    if block == "mood":
        pattern = rng.choice(MOODS[mood][1])
    elif block == "ending":
        pattern = rng.choice(MOODS[mood][2])
    elif block == "view":
        pattern = rng.choice(topic.views)
    else:
        pattern = rng.choice(SENTENCES[block])
    return capital(pattern.format_map(slots))


def _opening(name: str, rng: random.Random, first_person: bool, slots: dict[str, str]) -> str:
    """The first sentence, which names the hero or is in the first person."""
    pattern = rng.choice(OPENINGS_FIRST if first_person else OPENINGS_THIRD)
    return capital(pattern.format_map(dict(slots, N=name)).replace("a old", "an old"))


def _blocks(rng: random.Random, length: str) -> list[str]:
    """The blocks of one chapter: a plot without some of its blocks, and now and then with two blocks swapped."""
    plot = list(rng.choice(PLOTS))
    if length == "short":
        return [plot[0], rng.choice(plot[1:])]
    blocks = [block for block in plot if rng.random() > 0.15]
    if len(blocks) > 3 and rng.random() < 0.25:
        place = rng.randrange(len(blocks) - 1)
        blocks[place], blocks[place + 1] = blocks[place + 1], blocks[place]
    return blocks


def story(rng: random.Random, ask: StoryRequest = StoryRequest()) -> Story:
    """A story that follows `ask`. A short story has three to four sentences, a normal one about ten, a long one about
    thirty."""
    topic = TOPICS[ask.topic or pick_topic(rng)]
    mood = ask.mood or rng.choice(tuple(MOODS))
    name = ask.name or pick_name(rng)
    first = rng.random() < 0.3 if ask.first_person is None else ask.first_person
    hero = _hero(name, first)
    slots = _slots(rng, topic, mood, hero, {})
    sentences = [_opening(name, rng, first, slots)]
    keep = {key: slots[key] for key in ("thing", "friend", "wish")}
    place, paragraphs = slots["place"], []
    for chapter in range(3 if ask.length == "long" else 1):
        if chapter:
            paragraphs.append(" ".join(sentences))
            slots = _slots(rng, topic, mood, hero, keep)
            sentences = [f"{slots['T']}, {slots['S']} was {slots['place']}."]
        blocks = _blocks(rng, ask.length)
        sentences += [_sentence(rng, block, topic, mood, slots) for block in blocks]
    sentences.append(_sentence(rng, "ending", topic, mood, slots))
    if rng.random() < 0.2:
        sentences.append("The end.")
    text = "\n\n".join([*paragraphs, " ".join(sentences)])
    return Story(text, topic.name, mood, name, place, keep["friend"])
