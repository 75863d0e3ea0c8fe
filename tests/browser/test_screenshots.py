"""Screenshots of every page in dark and light, kept in docs/ui/: `make screenshots`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from steerserve import demo
from tests.browser.conftest import Tab
from tests.browser.service import Demo
from tests.browser.steering import generate, steer_link
from tests.browser.visit import ROOT, Entry, Visit, entries

FOLDER = ROOT / "docs" / "ui"
FREQUENT, RARE = 40, 40
"""The colours of a kept picture. The most frequent ones stay as they are; the rest goes to the nearest of a choice."""
ANSWERS = 24
OPENINGS = ("One day a sailor", "The seagull", "In the castle", "A ship on the sea")


def read_tokens(visit: Visit) -> None:
    visit.button("Read the text").click()
    visit.button("See where sea is active").click()
    chips = visit.page.get_by_role("listbox", name="Tokens of the text")
    chips.get_by_role("option", name="lighthouse").first.click()
    expect(visit.page.get_by_role("list", name="Its strongest features")).to_be_visible()


def have_answers(served: Demo) -> None:
    """Let the model write different answers for the charts, and save a profile."""
    served.live_in()
    for seed in range(served.data("GET", "/api/monitoring/history?limit=1")["total"], ANSWERS):
        served.write(OPENINGS[seed % 4], max_tokens=6 + seed, temperature=1.2, seed=seed)
    served.data("POST", "/api/profiles/save-current", {"name": "calm sea"})
    served.store_vector("calm", [1, 2, 3, 4])
    served.store_vector("stormy", [2, 3])
    served.train_probe()


def compare_texts(visit: Visit) -> None:
    visit.button("Compare").click()
    expect(visit.page.get_by_role("table")).to_be_visible()


PINS = f"pins={demo.proof()['feature_idx']},332,350"
BEGIN: dict[str, tuple[str, Callable[[Visit], None]]] = {
    "/steer": (steer_link("Tell me a story.", max=72), generate),
    "/tokens": ("", read_tokens),
    "/contrast": ("", compare_texts),
    "/live": (PINS, lambda visit: visit.settled()),
}
"""What a picture of a page begins with: its link, and what a person does then."""


asked = pytest.mark.skipif(
    "SCREENSHOTS" not in os.environ, reason="pictures are taken by `make screenshots`"
)


@asked
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_a_feature_is_taken(tab: Tab, served: Demo, scheme: str) -> None:
    proof, sae = demo.proof(), served.data("GET", "/api/saes/attachment")["sae_id"]
    visit = tab(color_scheme=scheme).open(
        f"/features/{sae}/{proof['layer']}/{proof['feature_idx']}"
    )
    panel = visit.page.get_by_role("region", name="Over a corpus")
    expect(panel.get_by_role("list", name="Strongest examples")).to_be_visible()
    # below the strip
    panel.evaluate("panel => (panel.scrollIntoView(), scrollBy(0, -72))")
    visit.page.evaluate("document.fonts.ready")
    keep(visit.page.screenshot(), f"feature-{scheme}.png")


@asked
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.path)
def test_a_picture_is_taken(tab: Tab, served: Demo, entry: Entry, scheme: str) -> None:
    have_answers(served)
    path = entry.path
    link, begin = BEGIN.get(path, ("", lambda visit: None))
    visit = tab(color_scheme=scheme).open(f"{path}?{link}" if link else path)
    begin(visit)
    visit.page.evaluate("document.fonts.ready")
    keep(visit.page.screenshot(), f"{path.removeprefix('/')}-{scheme}.png")


def keep(picture: bytes, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), dtype=np.uint32)
    codes = pixels @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    unique, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([unique >> 16, unique >> 8 & 255, unique & 255], axis=1).astype(np.uint8)
    frequent = colours[np.argsort(-counts, kind="stable")[:FREQUENT]]
    chosen = Image.fromarray(colours[None]).quantize(RARE).getpalette() or []
    palette = np.concatenate([frequent, np.array(chosen, dtype=np.uint8).reshape(-1, 3)])
    distances = np.square(colours[:, None].astype(int) - palette[None].astype(int)).sum(axis=2)
    nearest = distances.argmin(axis=1).astype(np.uint8)
    few = Image.fromarray(nearest[places].reshape(codes.shape))
    few.putpalette(palette.tobytes())
    few.save(FOLDER / name, optimize=True)
