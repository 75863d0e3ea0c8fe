"""Which known name a misspelt name is meant to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

EDITS_MAXIMUM = 2
"""The most characters that are missing, added or changed in a name that is nearly another one."""
WORDS_MINIMUM = 3
"""Only a name of so many words is also meant by a name with one word less or more."""
SIMILARITY = 0.7
"""How similar a name must be to count as the nearest one, as difflib measures it: `stop` is 0.67 to `top_p`."""
BEGINNING = 4
"""A name of so many characters also means a name that begins with it."""
NAMED_MAXIMUM = 20
"""The most names that a hint lists."""
LONGEST = 100
"""The characters of a name that are compared. No known name is longer."""


def hint(name: str, known: Sequence[str], what: str = "field") -> str:
    """What to write in place of an unknown name, as a clause: the nearest known name, or else all of them."""
    near = get_close_matches(name[:LONGEST], known, 1, SIMILARITY)
    if not near and len(name) >= BEGINNING:
        near = [one for one in known if one.startswith(name)]
    if near:
        return f"the nearest known {what} is {near[0]!r}"
    if not known:
        return f"there is no {what}"
    more = f" and {len(known) - NAMED_MAXIMUM} more" if len(known) > NAMED_MAXIMUM else ""
    return f"the known {what}s are {', '.join(map(repr, known[:NAMED_MAXIMUM]))}{more}"


def nearly(name: str, known: Iterable[str]) -> str | None:
    """The known name that is at most two edits away, or has the same words but one; None where there is none. Capital
    letters and hyphens are read as small letters and underscores."""
    if len(name) > LONGEST:
        return None
    written = name.lower().replace("-", "_")
    words, signs, names = written.split("_"), set(written), list(known)
    near = [
        other
        for other in names
        # one edit changes at most two of the signs that occur in only one of both
        if len(signs.symmetric_difference(other)) <= 2 * EDITS_MAXIMUM
        and _is_within(written, other, EDITS_MAXIMUM)
    ]
    for edits in range(EDITS_MAXIMUM + 1):
        for other in near:
            if _is_within(written, other, edits):
                return other
    return next((other for other in names if _has_words_of(words, other)), None)


def _is_within(one: str, other: str, edits: int) -> bool:
    """Whether so many edits make the one text of the other."""
    if abs(len(one) - len(other)) > edits:
        return False
    shorter = min(len(one), len(other))
    alike = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    one, other = one[alike:], other[alike:]
    if not one or not other:
        return True
    if not edits:
        return False
    rests = ((one[1:], other), (one, other[1:]), (one[1:], other[1:]))
    return any(_is_within(*rest, edits - 1) for rest in rests)


def _has_words_of(words: Sequence[str], other: str) -> bool:
    """Whether the words are those of another name, with at most one missing or added."""
    others = other.split("_")
    if len(others) < WORDS_MINIMUM or abs(len(words) - len(others)) > 1:
        return False
    shorter, longer = sorted((words, others), key=len)
    return set(shorter) <= set(longer) and not Counter(shorter) - Counter(longer)
