"""`response_format`: compiled schemas, and the tokens that each row may write next.

This module owns the grammar engine's tokenizer and its compiled schemas. It guarantees that a row's text is the
beginning of a valid document; the control plane checks that the finished text is a valid document.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from steerserve.errors import Refusal
from steerserve.rules.inference.schema_dialect import LEXER_STATES, dialect

COMPILED_MAXIMUM = 32
"""The default number of schemas that are kept compiled; the lexer states of each may grow to some 70 MB."""

STEP_SECONDS = 0.05
"""Processor seconds after which one step of one row counts as slow. A step usually takes a hundredth of a millisecond;
the first step takes a few milliseconds."""

SLOW_STEPS = 3
"""A row is refused after this many slow steps, because all other rows wait for each of them."""

_SAMPLE = '{"a": [1, "b c", true]}'


class Grammars:
    """The compiled schemas of one loaded model."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        n_vocab: int,
        end_tokens: frozenset[int],
        kept: int = COMPILED_MAXIMUM,
    ) -> None:
        """`n_vocab` is the width of the logits, which may be larger or smaller than the vocabulary of the tokenizer.

        The tokenizer is read here, because the reading takes up to a second and holds up all other work.
        """
        self.end_tokens = end_tokens
        # a tokenizer may know more tokens than the model; without an end token the library adds one of its own
        self.width = max(n_vocab, len(tokenizer)) + (0 if end_tokens else 1)
        self._kept = kept
        self._tokenizer = _tokenizer(tokenizer, self.width, end_tokens)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def compile(self, schema: str) -> Future[Grammar]:
        """Compile a schema, given as JSON text, in the background.

        The future raises Refusal: RESPONSE_FORMAT_UNSUPPORTED when the tokenizer or the schema cannot be constrained.
        """
        return self._thread.submit(self._grammar, schema)

    def fresh(self, schema: str) -> LLMatcher:
        """A new matcher that shares nothing with the matchers of running rows. The matchers of later rows are copies of
        it.

        Copies of a matcher share its lexer, whose states only ever grow in number.
        """
        with self._lock:
            self._compiled.pop(schema, None)
        return self._matcher(schema).deep_copy()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _grammar(self, schema: str) -> Grammar:
        return Grammar(self, schema, self._matcher(schema))

    def _matcher(self, schema: str) -> LLMatcher:
        with self._lock:
            if schema not in self._compiled:
                self._compiled[schema] = self._new_matcher(schema)
            self._compiled.move_to_end(schema)
            while len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
            return self._compiled[schema]

    def _new_matcher(self, schema: str) -> LLMatcher:
        if isinstance(self._tokenizer, Refusal):
            raise self._tokenizer
        grammar = LLMatcher.grammar_from_json_schema(dialect(json.loads(schema)))
        limits = LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _unsupported(f"the schema cannot be compiled: {_line(matcher)}")
        return matcher


class Grammar:
    """One compiled schema, from which any number of rows start."""

    def __init__(self, grammars: Grammars, schema: str, matcher: LLMatcher) -> None:
        self._grammars = grammars
        self._schema = schema
        self._matcher = matcher

    def constraint(self) -> RowConstraint:
        """The constraint of one row, before its first token."""
        return RowConstraint(self._grammars, self._schema, self._matcher.deep_copy())


class RowConstraint:
    """The document of one row so far, and the tokens that may come next."""

    def __init__(self, grammars: Grammars, schema: str, matcher: LLMatcher) -> None:
        self._grammars = grammars
        self._schema = schema
        self._matcher = matcher
        self._tokens: list[int] = []
        self._has_ended = False
        self._slow_steps = 0

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._grammars.end_tokens

    @property
    def width(self) -> int:
        """The number of tokens that a mask covers; at least the width of the logits."""
        return self._grammars.width

    @property
    def may_end(self) -> bool:
        """Whether the text is a whole document, so that an end token is allowed."""
        return self._has_ended or self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the text is a whole document that only an end token can follow."""
        return self._has_ended or (self._matcher.is_stopped() and self._matcher.is_accepting())

    def advance(self, token: int) -> None:
        """Take the row's next token.

        Raises:
            Refusal: CONSTRAINED_OUTPUT_INVALID when the token is not allowed, or the schema exceeds a limit at this
                token.
        """
        if token in self.end_tokens and self.may_end:
            self._has_ended = True
            return
        self._tokens.append(token)
        started = time.thread_time()
        is_taken = self._matcher.consume_token(token)
        self._count(started)
        if not is_taken:
            self._restart()

    def fill(self, bits: np.ndarray, row: int) -> None:
        """Write the allowed tokens into one row of `bits` int32 [rows, width / 32], the lowest bit first.

        Raises:
            Refusal: CONSTRAINED_OUTPUT_INVALID when a limit is exceeded, or no token is allowed.
        """
        started = time.thread_time()
        fill_next_token_bitmask(self._matcher, bits, row)
        self._count(started)
        if self._matcher.is_error():
            self._restart()
            fill_next_token_bitmask(self._matcher, bits, row)
        if self._matcher.is_error():
            raise _invalid(_line(self._matcher))
        if not bits[row].any() and not self.may_end:
            raise _invalid("no token of the model can continue the document")

    def _restart(self) -> None:
        """Go on with a new lexer, because the shared lexer may be full of the states of other rows."""
        self._matcher = self._grammars.fresh(self._schema)
        self._matcher.consume_tokens(self._tokens)
        if self._matcher.is_error():
            raise _invalid(_line(self._matcher))

    def _count(self, started: float) -> None:
        self._slow_steps += time.thread_time() - started > STEP_SECONDS
        if self._slow_steps >= SLOW_STEPS:
            raise _invalid("the schema is too ambiguous to be enforced quickly")


def mask(
    logits: Tensor, constraints: Sequence[RowConstraint | None]
) -> tuple[Tensor, dict[int, Refusal]]:
    """The logits of the tokens that may come next.

    Args:
        logits: float [rows, vocabulary]. Not modified.
        constraints: one per row; None leaves a row as it is.

    Returns:
        The logits with -inf at every token that is not allowed, and the refusals of rows that cannot go on, by index;
        those rows' logits mean nothing.
    """
    rows = [(i, c) for i, c in enumerate(constraints) if c is not None]
    if not rows:
        return logits, {}
    refusals: dict[int, Refusal] = {}
    width = logits.shape[1]
    bits = allocate_token_bitmask(len(rows), rows[0][1].width)
    may_end = np.zeros((len(rows), 1), dtype=bool)
    for place, (row, constraint) in enumerate(rows):
        try:
            constraint.fill(bits, place)
            may_end[place] = constraint.may_end
        except Refusal as refusal:
            refusals[row] = refusal
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :width].astype(bool)
    allowed[:, [token for token in rows[0][1].end_tokens if token < width]] = may_end
    banned = torch.from_numpy(~allowed).to(logits.device)
    if len(rows) == len(constraints):
        return logits.masked_fill(banned, -torch.inf), refusals
    index = torch.tensor([row for row, _ in rows], device=logits.device)
    masked = logits[index].masked_fill(banned, -torch.inf)
    return logits.index_copy(0, index, masked), refusals


def _tokenizer(
    source: PreTrainedTokenizerBase, n_vocab: int, end_tokens: frozenset[int]
) -> LLTokenizer | Refusal:
    """The tokenizer in the form of the grammar engine, or the refusal where there is none.

    The grammar engine understands byte-level and byte-fallback tokenizers. It holds the interpreter lock while it reads
    a tokenizer, about a second for 150,000 tokens.
    """
    backend = getattr(source, "backend_tokenizer", None)
    if backend is None:
        return _unsupported(
            "the tokenizer of this model cannot be constrained: it has no fast form"
        )
    try:
        text = backend.to_str()
        if backend.padding is not None or backend.truncation is not None:
            text = json.dumps({**json.loads(text), "padding": None, "truncation": None})
        # an end token that the tokenizer does not know is left out here; `mask` allows it
        known = backend.get_vocab_size()
        ends = [token for token in sorted(end_tokens) if token < known] or None
        slices = LLTokenizer.json_slices()
        built = LLTokenizer(text, n_vocab=n_vocab, eos_token=ends, slices=slices)
        decoded = built.decode_bytes(built.tokenize_str(_SAMPLE))
    except (ValueError, RuntimeError) as error:
        return _unsupported(f"the tokenizer of this model cannot be constrained: {error}")
    if decoded.decode(errors="replace").removeprefix(" ") != _SAMPLE:
        return _unsupported("the tokenizer of this model cannot be constrained: it changes texts")
    return built


def _line(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0]


def _unsupported(message: str) -> Refusal:
    return Refusal("RESPONSE_FORMAT_UNSUPPORTED", message, param="response_format")


def _invalid(message: str) -> Refusal:
    return Refusal("CONSTRAINED_OUTPUT_INVALID", f"the constrained output cannot go on: {message}")
