"""The Steer page as a person uses it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Locator, expect

from tests.browser.visit import Visit

COMPLETE = "Both sides are complete."


def steer_link(prompt: str, features: list[list[float]] | None = None, **state: Any) -> str:
    """The part of a link that restores the Steer page. A feature is its index, its value, and 1 where it is on."""
    fields = {"as": "prompt", "prompt": prompt, "f": json.dumps(features or [[90, 52.5, 1]])}
    return urlencode(fields | state)


def side(visit: Visit, name: str) -> Locator:
    return visit.page.get_by_role("article", name=name, exact=True)


def text_of(visit: Visit, name: str) -> str:
    """The text of a side. It stands between what was added to the model and how the text ended."""
    return side(visit, name).get_by_role("paragraph").nth(1).inner_text()


def complete(visit: Visit) -> None:
    """Wait until both sides are written."""
    expect(visit.page.get_by_text(COMPLETE, exact=False)).to_be_visible()


def generate(visit: Visit) -> None:
    visit.button("Generate").click()
    complete(visit)


def strength(visit: Visit, name: str) -> Locator:
    return visit.page.get_by_role("slider", name=f"Strength of {name}", exact=True)
