"""The commands of a page of the manual, run in order as they are written. Standard library only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[3] / "docs" / "recipes"
WRITTEN = "http://127.0.0.1:8000"
"""The service that the pages ask."""


def blocks(page: str, languages: str) -> list[tuple[str, str]]:
    """The language and the text of each block of a recipe in one of the languages, `a|b`."""
    text = (RECIPES / page).read_text()
    return re.findall(rf"```({languages})\n(.*?)```", text, re.DOTALL)


def run(page: str, url: str) -> dict[str, Any]:
    """Run a recipe in the working folder against the service at `url`; the names that its Python has defined."""
    names: dict[str, Any] = {"__name__": page}
    for language, text in blocks(page, "bash|python"):
        command = text.replace(WRITTEN, url)
        if language == "bash":
            subprocess.run(["bash", "-c", command], check=True, capture_output=True)
        else:
            exec(compile(command, page, "exec"), names)
    return names
