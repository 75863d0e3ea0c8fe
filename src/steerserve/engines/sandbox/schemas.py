"""The checker: child processes that compile schemas and validate documents, so that a hostile schema or document cannot
block the service.

`Checker` is their client in the control plane; `python -m steerserve.engines.sandbox.schemas` is one such process.
Questions and answers are JSON.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import NoReturn

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from steerserve.engines.sandbox.pool import PoolCounts, ProcessPool
from steerserve.engines.sandbox.pool_process import Died, limit, serve
from steerserve.errors import Refusal
from steerserve.rules.bounds import SCHEMAS_KEPT
from steerserve.rules.inference.schema_dialect import LEXER_STATES, dialect
from steerserve.rules.inference.schema_parts import Schema, is_endless, parts
from steerserve.rules.inference.schema_subset import Fault, compact, fault, refusal

CHECK_SECONDS = 1.5
"""Seconds that one check or validation may take."""

PROCESSES = 4
"""Processes that may run at once."""

MEMORY_BYTES = 1 << 30
"""Address space of a process."""

REASON_CHARACTERS = 300
WALKS = 4
WALK_BYTES = 256
STEP_SECONDS = 0.05
"""Processor time of one byte of a rehearsed document. A large vocabulary takes about twice as long."""


class SchemaQuestion(msgspec.Struct):
    """`schema` is JSON text. With a `text`, that document is validated; without one, the schema is checked."""

    schema: str
    text: str | None = None


class SchemaAnswer(msgspec.Struct):
    """`reason` says why the schema or document is refused, None where it is good; `faults` names the keywords that
    cause the refusal. `is_unfinished` says that the check met a limit of time, memory or depth, so its result is not
    known."""

    reason: str | None = None
    faults: list[dict[str, str]] = []
    is_unfinished: bool = False


# ------------------------------------------------------------------ in the control plane


class Checker:
    """Remembers the schemas that were good, and owns the processes. A client that sends costly schemas holds up neither
    the others nor the service.

    Args:
        waiting_maximum: the number of checks that may wait for a process.
    """

    def __init__(self, waiting_maximum: int = PROCESSES) -> None:
        command = [sys.executable, "-m", "steerserve.engines.sandbox.schemas"]
        self._pool = ProcessPool("the checker of schemas", command, PROCESSES, waiting_maximum)
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return self._pool.pids

    def counts(self) -> PoolCounts:
        """The checks and validations that wait and run."""
        return self._pool.counts()

    def has_passed(self, schema: Schema) -> bool:
        """Whether the schema is remembered as good."""
        return _digest(compact(schema)) in self._passed

    async def check_schema(self, schema: Schema, client: str = "") -> None:
        """Check that the grammar engine can enforce a schema that `schema_subset.check_subset` has passed.

        Raises:
            Refusal: RESPONSE_FORMAT_UNSUPPORTED when it cannot, or when the check exceeds its limits of time and
                memory.
            LineFull: too many checks wait.
        """
        text = compact(schema)
        digest = _digest(text)
        if digest in self._passed:
            self._passed.move_to_end(digest)
            return
        answer = await self._ask(SchemaQuestion(text), client, may_drop=True)
        if answer.reason is not None:
            raise refusal(answer.faults or [fault("", (), answer.reason)])
        self._passed[digest] = None
        while len(self._passed) > SCHEMAS_KEPT:
            self._passed.popitem(last=False)

    async def validate(self, schema: Schema, text: str, client: str = "") -> str | None:
        """None when `text` is a JSON document that satisfies the schema; otherwise the reason in one line.

        Raises:
            Refusal: CONSTRAINED_OUTPUT_UNCHECKED when validation does not end within its limits.
        """
        answer = await self._ask(SchemaQuestion(compact(schema), text), client, may_drop=False)
        if answer.is_unfinished:
            raise Refusal(
                "CONSTRAINED_OUTPUT_UNCHECKED",
                f"the constrained output is complete, but could not be validated: it {answer.reason}",
            )
        return answer.reason

    async def close(self) -> None:
        """End the processes. Questions that wait for a process are refused."""
        await self._pool.close()

    async def _ask(self, ask: SchemaQuestion, client: str, *, may_drop: bool) -> SchemaAnswer:
        """The answer of a process, or an unfinished answer with the limit that the question met."""
        try:
            answer = await self._pool.ask(
                msgspec.json.encode(ask), CHECK_SECONDS, client, may_drop=may_drop
            )
            return msgspec.json.decode(answer, type=SchemaAnswer)
        except TimeoutError:
            return SchemaAnswer(
                f"takes longer than {CHECK_SECONDS:g} s to check", is_unfinished=True
            )
        except Died:
            return SchemaAnswer("needs more memory or depth than a check has", is_unfinished=True)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


# ------------------------------------------------------------------ in the process


def try_schema(schema: Schema, tokenizer: LLTokenizer) -> SchemaAnswer:
    """Compile the schema, and write the beginnings of some of its documents."""
    faults = list(_bad_patterns(schema))
    if faults:
        return SchemaAnswer("patterns that cannot be compiled", faults)
    if is_endless(schema):
        return SchemaAnswer("no finite document can satisfy it")
    matcher = _compiled(schema, tokenizer)
    if matcher.is_error():
        return SchemaAnswer(_line(matcher.get_error()), list(_refused_patterns(schema, tokenizer)))
    return SchemaAnswer(_rehearse(matcher))


def validate(schema: Schema, text: str) -> str | None:
    """The reason why `text` is not a document of the schema, in one line; None when it is one.

    Raises:
        RecursionError: for a document that is nested too deep.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
        error: ValidationError | None = next(
            Draft202012Validator(schema).iter_errors(document), None
        )
    except ValueError as wrong:
        return _line(f"not JSON: {wrong}")
    return _line(f"{error.json_path}: {error.message}") if error else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _bad_patterns(schema: Schema) -> Iterator[Fault]:
    """The patterns that cannot be compiled by Python's `re`, which validation uses, or for which `re` warns of a
    meaning of its own."""
    for path, part in parts(schema):
        if "pattern" in part:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    re.compile(part["pattern"])
            except (re.error, Warning, OverflowError, RecursionError) as error:
                yield fault("pattern", (*path, "pattern"), _line(str(error)))


def _refused_patterns(schema: Schema, tokenizer: LLTokenizer) -> Iterator[Fault]:
    """The patterns that the grammar engine cannot compile by themselves."""
    for path, part in parts(schema):
        if "pattern" in part:
            matcher = _compiled({"pattern": part["pattern"]}, tokenizer)
            if matcher.is_error():
                yield fault("pattern", (*path, "pattern"), _line(matcher.get_error()))


def _compiled(schema: Schema, tokenizer: LLTokenizer) -> LLMatcher:
    grammar = LLMatcher.grammar_from_json_schema(dialect(schema))
    limits = LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def _rehearse(matcher: LLMatcher) -> str | None:
    """Write the beginnings of some documents, byte by byte, and check that each step is possible and quick. Returns the
    reason of a failure.

    The choices favour the end of a string, so that a walk does not stay in one string. They are the same at every
    check.
    """
    for walk in range(WALKS):
        state, choice = matcher.deep_copy(), random.Random(walk)  # noqa: S311
        for _ in range(WALK_BYTES):
            started = time.thread_time()
            allowed = int.from_bytes(state.compute_bitmask(), "little")
            options = [byte for byte in range(256) if allowed >> byte & 1]
            if options:
                is_string_end = ord('"') in options and choice.random() < 0.5
                state.consume_token(ord('"') if is_string_end else choice.choice(options))
            if state.is_error():
                return _failure(state)
            if time.thread_time() - started > STEP_SECONDS:
                return "is too ambiguous to be enforced quickly"
            if not options or state.is_stopped():
                break
    return None


def _failure(state: LLMatcher) -> str:
    reason = _line(state.get_error())
    if reason.startswith("NoExtension"):
        return "leads to a place from which no document can be finished"
    return f"is too complex: {reason}"


def _line(text: str) -> str:
    """The first line, cut to its maximum length. A regex error is drawn over several lines and named in the last line,
    which is then added."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "unknown error"
    last = lines[-1] if lines[-1].startswith("error:") else ""
    return f"{lines[0]} {last}".strip()[:REASON_CHARACTERS]


def main() -> None:
    """The process."""
    limit(MEMORY_BYTES)
    tokenizer = LLTokenizer("byte")
    serve(
        lambda body: msgspec.json.encode(
            _answer(msgspec.json.decode(body, type=SchemaQuestion), tokenizer)
        ),
        CHECK_SECONDS,
    )


def _answer(ask: SchemaQuestion, tokenizer: LLTokenizer) -> SchemaAnswer:
    schema = json.loads(ask.schema)
    if ask.text is not None:
        try:
            return SchemaAnswer(validate(schema, ask.text))
        except RecursionError:
            return SchemaAnswer("is nested too deep to be validated", is_unfinished=True)
    try:
        return try_schema(schema, tokenizer)
    except ValueError as error:
        return SchemaAnswer(_line(str(error)))


if __name__ == "__main__":
    main()
