"""Which replica holds the beginning of a prompt, because it has read that beginning in an earlier request."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 64
"""The tokens of one block. The chain of digests of a prompt has a link for each whole block."""

LONGEST = 512
"""The most links of a prompt. What follows its first LONGEST blocks does not matter for the choice."""

KEPT = 32768
"""The most links that are remembered. The link that was used longest ago is forgotten first."""


def chain(tokens: Sequence[int]) -> list[bytes]:
    """A digest for each whole block of a prompt, which depends on all tokens up to the end of that block."""
    data = array("I", tokens[: BLOCK * LONGEST]).tobytes()
    size = BLOCK * array("I").itemsize
    digest = hashlib.blake2b(digest_size=12)
    links = []
    for end in range(size, len(data) + 1, size):
        digest.update(data[end - size : end])
        links.append(digest.copy().digest())
    return links


class Affinity:
    """Owner of the links. A replica is known by the number of its engine, so an engine that ended holds nothing."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._holders: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def held(self, links: Sequence[bytes]) -> dict[int, int]:
        """How many blocks of the prompt each engine holds; engines that hold none are left out."""
        blocks: dict[int, int] = {}
        for count in range(len(links), 0, -1):
            for engine in self._holders.get(links[count - 1], ()):
                blocks.setdefault(engine, count)
        return blocks

    def note(self, links: Sequence[bytes], engine: int) -> None:
        """The engine reads this prompt now."""
        for link in links:
            holders = self._holders.pop(link, ())
            if engine not in holders:
                holders = (*holders, engine)
            self._holders[link] = holders
        while len(self._holders) > self._kept:
            self._holders.popitem(last=False)

    def forget(self, engine: int) -> None:
        """The engine has ended."""
        for link, holders in list(self._holders.items()):
            if engine in holders:
                rest = tuple(one for one in holders if one != engine)
                if rest:
                    self._holders[link] = rest
                else:
                    del self._holders[link]
