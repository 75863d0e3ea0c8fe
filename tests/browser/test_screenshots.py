"""Screenshots of every page in dark and light, kept in docs/ui/: `make screenshots`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import pytest
from PIL import Image
from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo
from tests.browser.steering import generate, steer_link
from tests.browser.visit import ROOT, Entry, Visit, entries

FOLDER = ROOT / "docs" / "ui"
COLOURS = 64
"""The colours of a kept picture. Text stays sharp, and a picture has a fifth of its size."""
TEXT = "The sea was as smooth as glass, and a seagull cried above the shore."


def read_tokens(visit: Visit) -> None:
    visit.button("Read the text").click()
    chips = visit.page.get_by_role("listbox", name="Tokens of the text")
    chips.get_by_role("option", name="gull").first.click()
    expect(visit.page.get_by_role("list", name="Its strongest features")).to_be_visible()


PINS = f"pins={demo.proof()['feature_idx']},332,350"
BEGIN: dict[str, tuple[str, Callable[[Visit], None]]] = {
    "/steer": (steer_link("Tell me a story.", max=72), generate),
    "/tokens": ("", read_tokens),
    "/live": (PINS, lambda visit: visit.settled()),
}
"""What a picture of a page begins with: its link, and what a person does then."""


@pytest.mark.skipif(
    "SCREENSHOTS" not in os.environ, reason="pictures are taken by `make screenshots`"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.path)
def test_a_picture_is_taken(tab: Tab, served: Demo, entry: Entry, scheme: str) -> None:
    served.live_in()
    for prompt in ("One day a sailor", "The seagull", "In the castle", "A ship on the sea") * 2:
        served.write(prompt, max_tokens=12)
    path = entry.path
    link, begin = BEGIN.get(path, ("", lambda visit: None))
    visit = tab(color_scheme=scheme).open(f"{path}?{link}" if link else path)
    begin(visit)
    visit.page.evaluate("document.fonts.ready")
    keep(visit.page.screenshot(), f"{path.removeprefix('/')}-{scheme}.png")


def keep(picture: bytes, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    few = whole.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(FOLDER / name, optimize=True)
