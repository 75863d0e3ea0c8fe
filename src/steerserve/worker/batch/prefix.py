"""Keys and values of prompts and conversations, kept for the rows that begin with the same tokens.

They are a tree: each node has a run of tokens that follows the tokens of its parent, so a beginning that many prompts
share is held once. A row uses a beginning as far as the row is steered exactly as the row was that computed it,
position by position, and only where the same is read of both rows. The memory of all nodes is bounded; the
node that was used longest ago is dropped first, and never before the nodes that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from steerserve.messages import PromptToken
from steerserve.worker.model.kv import Held

LEAST = 256
"""A shorter prompt is not kept for later requests, and a shorter beginning that is not exact is not used: short prompts
then never depend on earlier requests."""
LEAST_EXACT = 8
"""A shorter beginning is not shared at all: to wait for it spares less than it costs."""

TOKEN_BYTES, TOP_BYTES = 200, 120
"""About the memory of the score of one token, and of each probable token beside it."""

Tokens = NDArray[np.int64]

ScoreForm = Hashable
"""What the scores of the tokens of a prompt depend on beside the tokens and their steering."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How a row is steered at its positions, as runs of positions that are steered alike, and what its parts
    read of it."""

    steering: Sequence[tuple[float, Hashable]]
    read: Hashable = None

    def common(self, other: Signature) -> float:
        """The number of positions, from the first, that are steered and read alike."""
        if self.read != other.read:
            return 0
        end = 0.0
        ones, others = iter(self.steering), iter(other.steering)
        one, its = next(ones, None), next(others, None)
        while one is not None and its is not None and one[1] == its[1]:
            end = min(one[0], its[0])
            if one[0] == end == its[0]:
                one, its = next(ones, None), next(others, None)
            elif one[0] == end:
                one = next(ones, None)
            else:
                its = next(others, None)
        return end

    def at(self, position: int) -> tuple[float, Hashable]:
        """The end of the run of a position, and its steering."""
        return next(run for run in self.steering if run[0] > position)


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a row that are to be found or kept. With `form` each token needs its score in this form too."""

    signature: Signature
    tokens: Tokens
    form: ScoreForm | None = None


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens that are steered alike, with their keys and values.

    Attributes:
        is_exact: the keys and values have the bits that a row computes which reads its whole prompt itself.
        notes: what the parts of a row with these tokens have read.
        scores: the scores of the tokens, by what they depend on.
        used: when it was last used, in the count of uses.
    """

    tokens: Tokens
    held: Held
    is_exact: bool = True
    notes: Sequence[object] = ()
    scores: dict[ScoreForm, list[PromptToken]] = field(default_factory=dict)
    parent: Node | None = None
    steering: Hashable = None
    children: dict[Hashable, Node] = field(default_factory=dict)
    used: int = 0

    @property
    def name(self) -> Hashable:
        """The name of the node among the children of its parent."""
        return int(self.tokens[0]), self.steering, self.is_exact

    @property
    def size(self) -> int:
        """The bytes of memory that the node takes."""
        tensors = sum(tensor.nbytes for pair in self.held.values() for tensor in pair)
        scored = (token for tokens in self.scores.values() for token in tokens)
        return tensors + sum(TOKEN_BYTES + TOP_BYTES * len(token.top) for token in scored)


@dataclass(frozen=True, slots=True)
class Beginning:
    """A kept beginning of a row: `parts` has its nodes with the number of tokens that are used of each. `exact` is the
    number of tokens, from the first, whose keys and values are exact."""

    parts: Sequence[tuple[Node, int]] = ()
    exact: int = 0

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def notes(self) -> Sequence[object]:
        return self.parts[-1][0].notes

    def scores(self, form: ScoreForm) -> list[PromptToken]:
        """The scores of the tokens in a form."""
        return [score for node, count in self.parts for score in node.scores[form][:count]]

    def then(self, node: Node, count: int) -> Beginning:
        return Beginning((*self.parts, (node, count)), self.exact + (count if node.is_exact else 0))


class Prefixes:
    """Kept beginnings, which take at most `most_bytes` of memory. `changes` counts what was added and dropped."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._roots: dict[Hashable, Node] = {}
        self._uses = 0
        self.changes = 0
        self.bytes = 0
        self.tokens = 0

    def nodes(self) -> Iterator[Node]:
        """All nodes, each before its children."""
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def tensors(self) -> Iterator[Tensor]:
        """The keys and values of all nodes."""
        for node in self.nodes():
            for pair in node.held.values():
                yield from pair

    def find(self, text: Text, *, is_exact: bool = False) -> Beginning | None:
        """The longest kept beginning of a text; with `is_exact`, of exact keys and values only. None where it is
        shorter than LEAST, and the longest exact one than LEAST_EXACT."""
        root = self._roots.get(text.signature.read)
        if root is None or len(text.tokens) < LEAST_EXACT:
            return None
        longest = exact = Beginning()
        waiting = [(root, Beginning())]
        while waiting:
            node, found = waiting.pop()
            at = found.tokens
            if at > longest.tokens:
                longest = found
            if at > exact.tokens and found.exact == at:
                exact = found
            if at == len(text.tokens) or (found.parts and found.parts[-1][1] < len(node.tokens)):
                continue
            for name in _names(text, at, is_exact=is_exact):
                child, count = _best(node, [name], text, at)
                if child is not None and (text.form is None or text.form in child.scores):
                    waiting.append((child, found.then(child, count)))
        if longest.tokens < LEAST:
            longest = exact
        if longest.tokens < LEAST_EXACT:
            return None
        self._use([node for node, _ in longest.parts])
        return longest

    def keep(
        self,
        text: Text,
        exact: int,
        take: Callable[[int, int], Held],
        notes: Sequence[object] = (),
        scores: Sequence[PromptToken] = (),
    ) -> None:
        """Keep the tokens of a text that are not kept yet. `take` copies the keys and values of the positions [start,
        end). Those of the first `exact` tokens are exact. `scores` are those of the text's form."""
        node, at, size = self._roots.setdefault(text.signature.read, _root()), 0, len(text.tokens)
        path = []
        while at < size:
            names = _names(text, at, is_exact=at < exact)
            child, common = _best(node, names, text, at)
            if child is None or not common:
                end, steering = text.signature.at(at)
                end = int(min(end, size, exact if at < exact else size))
                child = Node(text.tokens[at:end].copy(), take(at, end), at < exact, notes)
                child.parent, child.steering, common = node, steering, end - at
                self._add(child)
            elif common < len(child.tokens) and (
                at + common < size or text.form not in (None, *child.scores)
            ):
                child = self._split(child, common)
            if text.form is not None and text.form not in child.scores:
                before = child.size
                child.scores[text.form] = list(scores[at : at + common])
                self.bytes += child.size - before
                self.changes += 1
            path.append(child)
            node, at = child, at + common
        self._use(path)
        while self.bytes > self._most:
            self._drop(min((n for n in self.nodes() if not n.children), key=lambda n: n.used))

    def may_keep(self, tokens: int, token_bytes: int, least: int) -> bool:
        """Whether a row of this many tokens has at least so many, and fits."""
        return tokens >= least and tokens * token_bytes <= self._most

    def clear(self) -> None:
        self._roots.clear()
        self.bytes = self.tokens = 0
        self.changes += 1

    # ------------------------------------------------------------- inside

    def _use(self, path: Sequence[Node]) -> None:
        self._uses += 1
        for node in path:
            node.used = self._uses

    def _add(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[node.name] = node
        self.bytes += node.size
        self.tokens += len(node.tokens)
        self.changes += 1

    def _drop(self, node: Node) -> None:
        """Drop a node that no other follows."""
        assert node.parent is not None
        del node.parent.children[node.name]
        self.bytes -= node.size
        self.tokens -= len(node.tokens)
        self.changes += 1
        self._roots = {read: root for read, root in self._roots.items() if root.children}

    def _split(self, node: Node, count: int) -> Node:
        """Cut a node after `count` tokens; the first part."""
        first, rest = (
            Node(
                node.tokens[part],
                {
                    layer: (keys[:, part].clone(), values[:, part].clone())
                    for layer, (keys, values) in node.held.items()
                },
                node.is_exact,
                node.notes,
                {form: scores[part] for form, scores in node.scores.items()},
                steering=node.steering,
                used=node.used,
            )
            for part in (slice(count), slice(count, None))
        )
        parent = node.parent
        assert parent is not None
        first.parent, rest.parent, rest.children = parent, first, node.children
        for child in rest.children.values():
            child.parent = rest
        parent.children[first.name] = first
        first.children[rest.name] = rest
        self.changes += 1
        return first


def _root() -> Node:
    return Node(np.zeros(0, np.int64), {})


def _names(text: Text, at: int, *, is_exact: bool) -> list[Hashable]:
    """The names of the nodes that may have the tokens from position `at` on."""
    first, (_, steering) = int(text.tokens[at]), text.signature.at(at)
    exact = first, steering, True
    return [exact] if is_exact else [exact, (first, steering, False)]


def _best(node: Node, names: Sequence[Hashable], text: Text, at: int) -> tuple[Node | None, int]:
    """The child of a node that has most tokens in common with the text from position `at` on, and their number."""
    end = min(text.signature.at(at)[0], len(text.tokens))
    rest = text.tokens[at : int(end)]
    found = [child for name in names if (child := node.children.get(name)) is not None]
    counted = [(common(child.tokens, rest), child) for child in found]
    count, child = max(counted, key=lambda pair: pair[0], default=(0, None))
    return child, count


def common(one: Tokens, other: Tokens) -> int:
    """The number of tokens that both sequences begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
