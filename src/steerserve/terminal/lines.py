"""How lines are written in the chat: with a history that lasts, and completion of the commands."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SETTING, KEPT = "STEERSERVE_HISTORY", 1000
"""The variable of the environment with the number of lines of the history that are kept, and the number without it."""


@contextmanager
def edited(history: Path, commands: Collection[str]) -> Iterator[None]:
    """While the block runs, lines can be edited and repeated, and the tabulator completes commands. Where Python has no
    `readline`, lines are read as they are."""
    try:
        editor = importlib.import_module("readline")
    except ImportError:
        yield
        return
    kept = _kept()
    if kept:
        with suppress(OSError):  # there is none yet, or it cannot be read
            editor.read_history_file(history)
    editor.set_history_length(kept)
    editor.set_completer_delims(" ")
    editor.set_completer(lambda text, at: completion(commands, text, at))
    is_libedit = "libedit" in (editor.__doc__ or "")
    editor.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        editor.set_completer(None)
        if kept:
            with suppress(OSError):  # a chat needs no history
                history.parent.mkdir(parents=True, exist_ok=True)
                editor.write_history_file(history)


def _kept() -> int:
    said = os.environ.get(SETTING)
    if said is None:
        return KEPT
    # whoever writes `off` or `no` wants none
    return int(said) if said.isascii() and said.isdigit() else 0


def completion(commands: Collection[str], text: str, at: int) -> str | None:
    """The completion number `at` of the word that is being written; None where there are no more."""
    found = [f"{name} " for name in sorted(commands) if text and name.startswith(text)]
    return found[at] if at < len(found) else None
