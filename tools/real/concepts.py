"""Six concepts with texts that have them and texts that do not: three from the Brown corpus, three written."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tools.real import text

TEXTS = 24
"""The texts of each group."""
SHORTEST, LONGEST = 8, 40
"""The words of a text from the corpus."""


@dataclass(frozen=True)
class Concept:
    """A concept: `words` that tell whether a text has it, and the texts of both groups. No text of `without` has one of
    the words."""

    name: str
    words: Sequence[str]
    having: Sequence[str]
    without: Sequence[str]


OF_CORPUS = {
    "music": "music musical musician concert orchestra jazz piano song songs symphony opera melody singer singing band violin",
    "religion": "god church religion religious christian christ faith prayer bible holy priest soul lord catholic heaven worship",
    "war": "war army soldier soldiers troops battle enemy military weapons fought general attack combat guns captain officers",
}
WRITTEN = {
    "sea": (
        "sea ocean ship ships boat boats sail sailing sailor sailors waves water harbor beach shore fish coast tide island captain",
        (
            "The waves broke over the deck of the old ship all night.",
            "Two sailors pulled the nets out of the cold water.",
            "We watched the tide come in and cover the rocks.",
            "The captain steered the boat between the islands.",
            "Gulls circled above the harbor as the fishing boats came home.",
            "Far out on the ocean a single white sail moved slowly.",
            "The storm drove the ship towards the coast.",
            "Children built castles of sand at the edge of the sea.",
            "He dropped the anchor and waited for the wind to turn.",
            "A lighthouse warned the ships of the rocks near the shore.",
            "The crew sailed around the cape in nine days.",
            "Salt water ran down the windows of the ferry.",
            "Whales swam beside the boat for an hour.",
            "The dock smelled of fish and wet rope.",
            "She dived into the deep blue water of the bay.",
            "The old sailor told us about his voyages.",
        ),
    ),
    "food": (
        "food cook cooking kitchen bread cheese butter soup meal meals dinner eat eating ate recipe sugar salt cake sauce meat dish delicious oven flour vegetables fruit chicken",
        (
            "She baked the bread in a hot oven until the crust was brown.",
            "The soup needs more salt and a little pepper.",
            "He cut the cheese into thin slices for lunch.",
            "Mix the flour with butter, sugar and two eggs.",
            "We ate roasted chicken with potatoes and green beans.",
            "The cook tasted the sauce and added garlic.",
            "Fresh fruit and cream were served after dinner.",
            "My grandmother makes the best apple pie in town.",
            "The kitchen smelled of onions frying in a pan.",
            "They ordered pasta with tomatoes and basil.",
            "Boil the rice for twelve minutes and drain it.",
            "A bowl of hot noodles costs three dollars here.",
            "The chocolate cake was sweet and soft.",
            "He spread honey on a warm piece of toast.",
            "Grill the fish with lemon and serve it with salad.",
            "The recipe asks for a cup of milk.",
        ),
    ),
    "illness": (
        "doctor doctors hospital patient patients disease medicine medical illness ill sick pain fever nurse treatment health surgery cancer heart symptoms blood drug drugs therapy",
        (
            "The doctor listened to his heart and looked worried.",
            "The nurse gave the patient a shot for the pain.",
            "She stayed in the hospital for a week after the surgery.",
            "The fever came back during the night.",
            "A new drug slows the growth of the tumor.",
            "He coughed for days and could hardly breathe.",
            "The surgeon removed the infected tissue.",
            "Blood tests showed that she had an infection.",
            "The clinic treats children with asthma.",
            "His symptoms were headache, nausea and a rash.",
            "The vaccine protects people against the disease.",
            "After the stroke he could not move his left arm.",
            "The ambulance brought two injured men to the emergency room.",
            "Doctors found that the cancer had spread.",
            "She takes two pills every morning for her blood pressure.",
            "The patient needs a new kidney.",
        ),
    ),
}
OTHERS = (
    "The train to the city leaves at seven in the morning.",
    "He painted the fence white and went home.",
    "My brother repairs cars in a small garage.",
    "The teacher wrote three questions on the board.",
    "They built a new bridge across the valley.",
    "She read the letter twice and put it in a drawer.",
    "The committee will meet again on Thursday.",
    "A tall man in a grey coat asked for the way.",
    "The children played football in the park.",
    "Snow covered the roofs of the village.",
    "He bought a new computer for his office.",
    "The company opened a second factory in June.",
    "We walked through the forest until it was dark.",
    "The judge asked the witness to speak up.",
    "Her cat sleeps on the chair by the window.",
    "The mayor promised to lower the taxes.",
)


def concepts() -> list[Concept]:
    """All six. The texts from the corpus are drawn with a fixed seed."""
    lines = [line for sample in text.samples().values() for line in sample.splitlines()]
    lines = [line for line in lines if SHORTEST <= len(line.split()) <= LONGEST]
    random.Random(0).shuffle(lines)  # noqa: S311 -- it must be repeatable
    found = []
    for name, words in OF_CORPUS.items():
        found.append(of_words(name, words, lines))
    for name, (words, having) in WRITTEN.items():
        found.append(Concept(name, words.split(), having, OTHERS))
    return found


def of_words(name: str, words: str, texts: Sequence[str]) -> Concept:
    """The concept of some texts that have one of the words, in capitals or not, and of some that have none."""
    wanted = re.compile(rf"\b(?:{'|'.join(words.split())})\b", re.IGNORECASE)
    having = [one for one in texts if wanted.search(one)][:TEXTS]
    without = [one for one in texts if not wanted.search(one)][:TEXTS]
    return Concept(name, words.split(), having, without)
