"""The first two minutes with the demo: from sentences about a concept to a dial that turns texts to it, without an index."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Tab
from tests.browser.steering import complete, text_of

OTHERS = """The farmer fed the cow
A boat sailed over the waves
She baked bread in the kitchen
The teacher opened the book
A bus drove down the street"""
CONCEPTS = {
    "winter": (
        "The snow fell on the frozen lake\nA skater glided over the ice\nThe children built a snowman\n"
        "A sledge slid down the icy hill\nShe wore a warm scarf in the frost",
        "snow, ice, snowman, sledge, frozen, winter, icy, frost, skater, skating, sled",
    ),
    "castle": (
        "The king sat on the throne in the castle\nA knight rode over the drawbridge\n"
        "The queen wore a golden crown\nThe princess looked out of the tower\n"
        "The dragon guarded the castle gate",
        "king, castle, knight, queen, throne, crown, tower, dragon, drawbridge",
    ),
    "music": (
        "She played a melody on the piano\nThe violin sang in the orchestra\n"
        "He beat the drums at the concert\nThe choir sang a song\nThe guitar player tuned the strings",
        "piano, violin, drums, song, choir, guitar, melody, orchestra, concert, singer",
    ),
}
SECONDS = 120


def writing(rows: Locator, sentences: str) -> Locator:
    """The first feature that promotes a word of the sentences, as the page advises."""
    words = set(re.findall(r"[a-z]{4,}", sentences.lower()))
    for row in rows.all():
        promoted = {one.strip().lower() for one in row.locator(".token").all_inner_texts()}
        if promoted & words:
            return row.get_by_role("link")
    raise AssertionError("no feature of the list promotes a word of the sentences")


@pytest.mark.parametrize("concept", CONCEPTS)
def test_ten_sentences_lead_to_a_dial_with_a_measured_effect(tab: Tab, concept: str) -> None:
    sentences, words = CONCEPTS[concept]
    began = time.monotonic()
    visit = tab().open("/contrast")
    page = visit.page
    page.get_by_role("textbox", name="Texts with the concept").fill(sentences)
    page.get_by_role("textbox", name="Texts without it").fill(OTHERS)
    visit.button("Compare").click()
    found = page.get_by_role("group", name="Features that tell the texts apart")
    expect(found).to_be_visible()
    writing(found.get_by_role("row").filter(has=page.get_by_role("rowheader")), sentences).click()
    expect(page.get_by_role("list", name="Strongest examples")).to_be_visible()
    page.get_by_role("textbox", name="Words to look for").fill(words)
    visit.button("Measure").click()
    says = page.get_by_text(re.compile(r"(\d+) % of the texts have the words, without steering"))
    expect(says).to_be_visible()
    shares = re.findall(r"(\d+) %", says.inner_text())
    steered, plain = (int(share) for share in shares)
    assert steered >= plain + 25
    says.get_by_role("link").click()
    expect(visit.heading).to_have_text("Steer")
    visit.button("Generate").click()
    complete(visit)
    seconds = time.monotonic() - began
    one = re.compile("|".join(words.split(", ")))
    assert len(one.findall(text_of(visit, "Steered"))) > len(one.findall(text_of(visit, "Plain")))
    assert seconds < SECONDS
