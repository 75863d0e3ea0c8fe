"""The positions at which an edit acts: as a request says them, and as they are for one prompt.

A position is an index into prompt and answer together, counted from 0. The generated position g is that of the sampled
token g of the answer, counted from 0. The first token of the answer is predicted by the last position of the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

EVERY, PROMPT, LAST_PROMPT, GENERATED, OUTPUT = (
    "all",
    "prompt",
    "last_prompt",
    "generated",
    "output",
)
NAMES = (EVERY, PROMPT, LAST_PROMPT, GENERATED, OUTPUT)
"""Every position; the prompt's without its last; its last; those of sampled tokens; the last two, which predict the
answer."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The tokens [start, end) of a prompt that are the content of a message with this role."""

    role: str
    start: int
    end: int


class Selection(msgspec.Struct, frozen=True):
    """A union of positions.

    Attributes:
        names: some of `NAMES`.
        prompt_positions: positions of the prompt; a negative one counts from its end.
        prompt_window: the positions [a, b) of the prompt.
        generated_window: the generated positions [a, b).
        roles: the contents of chat messages with these roles.
        tokens: the positions of these token ids.
        after_text: every generated position from the one whose token completes this text in the answer.
        special: the positions of the tokenizer's special tokens.
    """

    names: tuple[str, ...] = ()
    prompt_positions: tuple[int, ...] = ()
    prompt_window: tuple[int, int] | None = None
    generated_window: tuple[int, int] | None = None
    roles: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    after_text: str | None = None
    special: bool = False

    @property
    def is_every(self) -> bool:
        """Whether no position is left out."""
        return EVERY in self.names


class Positions(msgspec.Struct, frozen=True, cache_hash=True):
    """The positions of `include` without those of `exclude`."""

    include: Selection = Selection(names=(EVERY,))
    exclude: Selection | None = None

    @property
    def is_every(self) -> bool:
        """Whether no position is left out."""
        return self.exclude is None and self.include.is_every

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts in the answer that the positions depend on."""
        parts = (self.include, self.exclude)
        return tuple(part.after_text for part in parts if part is not None and part.after_text)

    @property
    def roles(self) -> frozenset[str]:
        """The roles of messages that the positions name."""
        out = () if self.exclude is None else self.exclude.roles
        return frozenset((*self.include.roles, *out))


ALL = Positions()


class PromptFacts(msgspec.Struct, frozen=True):
    """What positions are resolved against: the tokens of the prompt, the contents of its messages, and the special
    tokens of the tokenizer."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...] = ()
    special: frozenset[int] = frozenset()


def in_prompt(positions: Positions, facts: PromptFacts) -> list[bool]:
    """For each position of the prompt, whether it is one of these positions."""
    mask = _in_prompt(positions.include, facts)
    if positions.exclude is not None:
        out = _in_prompt(positions.exclude, facts)
        mask = [is_in and not is_out for is_in, is_out in zip(mask, out, strict=True)]
    return mask


def is_generated(
    positions: Positions, index: int, token: int, special: Collection[int], written: Collection[str]
) -> bool:
    """Whether the generated position `index`, whose token is `token`, is one of these positions. `written` has the
    texts of `Positions.texts` that the answer contains up to this token."""
    if not _is_generated(positions.include, index, token, special, written):
        return False
    out = positions.exclude
    return out is None or not _is_generated(out, index, token, special, written)


def missing(positions: Positions, size: int) -> int | None:
    """A position that a prompt of `size` tokens does not have; None where it has all that are named."""
    parts = (positions.include, positions.exclude)
    named = (at for part in parts if part is not None for at in part.prompt_positions)
    return next((at for at in named if not -size <= at < size), None)


def most_generated(positions: Positions, max_tokens: int) -> int:
    """The most generated positions that may be among these, in an answer of at most so many tokens."""
    include = positions.include
    is_open = include.is_every or include.tokens or include.special or include.after_text
    if is_open or {GENERATED, OUTPUT} & set(include.names):
        return max_tokens
    if include.generated_window is None:
        return 0
    start, end = include.generated_window
    return max(0, min(end, max_tokens) - start)


def names_token(positions: Positions, ids: Sequence[int], at: int) -> bool:
    """Whether position `at` of the prompt is named as a position, or by its token."""
    include = positions.include
    named = {
        place % len(ids) for place in include.prompt_positions if -len(ids) <= place < len(ids)
    }
    return at in named or ids[at] in include.tokens


def _in_prompt(selection: Selection, facts: PromptFacts) -> list[bool]:
    size = len(facts.ids)
    mask = [selection.is_every] * size
    for part in _ranges(selection, facts):
        for at in part:
            if -size <= at < size:
                mask[at] = True
    wanted = {*selection.tokens, *(facts.special if selection.special else ())}
    if wanted:
        mask = [is_in or token in wanted for is_in, token in zip(mask, facts.ids, strict=True)]
    return mask


def _ranges(selection: Selection, facts: PromptFacts) -> list[Iterable[int]]:
    last = len(facts.ids) - 1
    ranges: list[Iterable[int]] = [selection.prompt_positions]
    if PROMPT in selection.names:
        ranges.append(range(last))
    if LAST_PROMPT in selection.names or OUTPUT in selection.names:
        ranges.append((last,))
    if selection.prompt_window is not None:
        start, end = selection.prompt_window
        ranges.append(range(start, min(end, last + 1)))
    ranges += [range(span.start, span.end) for span in facts.spans if span.role in selection.roles]
    return ranges


def _is_generated(
    selection: Selection, index: int, token: int, special: Collection[int], written: Collection[str]
) -> bool:
    window = selection.generated_window
    return (
        selection.is_every
        or GENERATED in selection.names
        or OUTPUT in selection.names
        or (window is not None and window[0] <= index < window[1])
        or token in selection.tokens
        or (selection.special and token in special)
        or (selection.after_text is not None and selection.after_text in written)
    )
