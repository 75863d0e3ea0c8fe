"""The words for evidence come from one module. Everywhere else, text for people does not call anything causal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from steerserve.rules.steering import evidence

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "steerserve").rglob("*.py"))
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "development").glob("*.md"),
        ROOT / "README.md",
    ]
)
ABOUT_MODELS = re.compile(
    r"causal language model|causal attention|causallm|attention\.causal", re.I
)
"""Uses of the word that are about the architecture of language models."""


def texts(source: Path) -> Iterator[str]:
    """The string constants and docstrings of a module that has the word."""
    written = source.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(written)) if "causal" in written.lower() else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_causal(text: str) -> bool:
    return "causal" in ABOUT_MODELS.sub("", text).lower()


def test_no_text_of_the_service_but_the_phrase_of_rung_2_has_the_word_causal() -> None:
    said = {text for source in SOURCES for text in texts(source) if is_causal(text)}
    assert said == {evidence.LANGUAGE[2]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_the_word_causal_outside_of_the_phrase_of_rung_2(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace(evidence.LANGUAGE[2], "")
    assert not is_causal(text)
