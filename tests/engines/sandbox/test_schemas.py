"""The checker process: what it refuses and validates, and that nothing hostile gets past it or stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from steerserve.engines.sandbox import schemas as grammar
from steerserve.engines.sandbox.schemas import Checker
from steerserve.errors import Refusal
from steerserve.rules.inference.schema_dialect import JSON_OBJECT
from steerserve.rules.inference.schema_subset import check_subset
from tests.refusals import refused

TEXT = {"type": "string"}
PATIENCE = 10.0
"""Seconds for one question on a busy machine. A process may take 1.5 of them."""
CATASTROPHE: dict[str, Any] = {"type": "string", "pattern": "^(a|aa)*b$"}
STACK_OVERFLOW = {"const": -(2**63)}
"""The walk over the keywords refuses it, because the engine does not survive it."""

CATASTROPHIC_TEXT = json.dumps("a" * 5000)
"""Backtracking in Python's `re` takes longer than anybody waits."""


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker()
    yield checker
    await checker.close()


@pytest.fixture(scope="module")
def tokenizer() -> grammar.LLTokenizer:
    return grammar.LLTokenizer("byte")


def pid(checker: Checker) -> int | None:
    """Of the first process that runs, if any."""
    return next(iter(checker.pids), None)


def is_busy(checker: Checker) -> bool:
    return checker.counts().running > 0 and any(
        process._lock.locked() for process in checker._pool._processes
    )


async def refused_schema(checker: Checker, schema: Any) -> Refusal:
    refusal = await refused(checker.check_schema(schema))
    assert refusal.code == "RESPONSE_FORMAT_UNSUPPORTED"
    assert refusal.param == "response_format"
    return refusal


def pattern(text: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": {"type": "string", "pattern": text}}}


GOOD: list[Any] = [
    True,
    {},
    json.loads(JSON_OBJECT),
    TEXT,
    {"type": "object", "properties": {f"p{i}": TEXT for i in range(256)}},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"$defs": {"a[x]": {"items": {"$ref": "#/$defs/a[x]"}}}, "$ref": "#/$defs/a[x]"},
    {"type": "string", "maxLength": 10**12},
    {"enum": [f"{i:05}" for i in range(2000)]},
    pattern(r"^[\w.-]+@[\w.-]+\.[a-z]{2,}$"),
]


async def test_good_schemas_pass(checker: Checker) -> None:
    for schema in GOOD:
        check_subset(schema)
        await checker.check_schema(schema)


PATTERNS = [
    "(a",  # no validator reads it
    r"\p{L}",  # only the engine does
    "[a&&b]",  # each in its own way
    "(?=a)b",  # only the validator does
    r"\bword",
    r"(a)\1",
    "^" + "(" * 3000 + "a" + ")" * 3000 + "$",
]


async def test_a_pattern_that_one_side_cannot_compile_is_refused_at_its_place(
    checker: Checker,
) -> None:
    for text in PATTERNS:
        refusal = await refused_schema(
            checker, {**pattern(text), "additionalProperties": pattern("^a$")}
        )
        (found,) = refusal.details["unsupported"]
        assert (found["keyword"], found["pointer"]) == ("pattern", "/properties/p/pattern")
        assert "\n" not in refusal.message


NOTHING: list[Any] = [
    {"type": "integer", "minimum": 2.1, "maximum": 2.9},
    {"type": "string", "minLength": 2, "pattern": "^a$"},
    {"type": "array", "minItems": 1, "items": False},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "string", "const": 1},
    {"type": "string", "anyOf": [{"type": "integer"}, False]},
    {
        "$defs": {
            "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}
        },
        "$ref": "#/$defs/a",
    },
]


async def test_a_schema_that_admits_nothing_is_refused(checker: Checker) -> None:
    for schema in NOTHING:
        check_subset(schema)
        await refused_schema(checker, schema)


def ambiguous(kinds: int, lengths: int) -> dict[str, Any]:
    """Every array may be of any of `kinds` x `lengths` sorts, which a parser has to follow all at once."""
    any_kind = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in range(kinds)]}
    sorts = [{"type": "array", "items": any_kind, "minItems": i} for i in range(lengths)]
    return {
        "$defs": {str(kind): {"anyOf": sorts} for kind in range(kinds)},
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/0"}},
        "required": ["p"],
    }


HOSTILE: list[Any] = [
    *(
        pattern(text)
        for text in (
            "(a|aa)*b{1,5000}",
            "((a{1,1000}){1,1000})",
            "(.*a){50}",
            "^(.*a.{60}){20}$",
            "(((((a{1,100}){1,100}){1,100}){1,100}){1,100})",
            "^(((a+)+)+)+$",
            "^(" + "|".join(f"{i * 7919 % 100000:05}x?" for i in range(6000)) + ")$",
            "^" + "".join(f"(a{i}|b{i})?" for i in range(3000)) + "$",
            "^(" + ".*a" * 2000 + ")$",
            "(?i)" + "É" * 10000,
            "a{4294967296}",
        )
    ),
    ambiguous(6, 60),
    ambiguous(1, 700),
    {"type": "array", "items": {"enum": [{"a": i, "b": [i] * 5} for i in range(1200)]}},
    {"type": "string", "minLength": 50000, "pattern": "[0-9]$"},
    STACK_OVERFLOW,
]


async def test_a_hostile_schema_takes_seconds_at_most_and_harms_no_other(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    for number, schema in enumerate(HOSTILE):
        started = time.monotonic()
        with contextlib.suppress(Refusal):
            await checker.check_schema(schema)
        assert time.monotonic() - started < PATIENCE
        await checker.check_schema({"type": "string", "title": f"after {number}"})


async def test_ambiguity_that_would_hold_up_every_row_is_refused(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CHECK_SECONDS", 60.0)
    schema = ambiguous(6, 60)
    check_subset(schema)
    assert "ambiguous" in (await refused_schema(checker, schema)).message


async def test_a_question_that_takes_too_long_ends_with_a_reason(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CHECK_SECONDS", 0.2)
    refusal = await refused(checker.validate(CATASTROPHE, CATASTROPHIC_TEXT))
    assert refusal.code == "CONSTRAINED_OUTPUT_UNCHECKED"
    assert "longer than 0.2 s" in refusal.message
    assert "invalid" not in refusal.message
    assert await checker.validate(CATASTROPHE, '"aab"') is None


async def test_questions_asked_during_a_hostile_one_are_answered(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CHECK_SECONDS", 0.3)
    hostile, good, bad = await asyncio.gather(
        checker.validate(CATASTROPHE, CATASTROPHIC_TEXT),
        checker.validate(TEXT, '"a"'),
        checker.validate(TEXT, "1"),
        return_exceptions=True,
    )
    assert isinstance(hostile, Refusal)
    assert good is None
    assert bad == "$: 1 is not of type 'string'"


async def test_a_hostile_question_does_not_hold_up_the_next(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CHECK_SECONDS", 60.0)
    hostile = asyncio.create_task(checker.validate(CATASTROPHE, CATASTROPHIC_TEXT))
    while not is_busy(checker):
        await asyncio.sleep(0)
    assert await checker.validate(TEXT, '"a"') is None
    assert len(checker.pids) >= 2
    assert not hostile.done()
    hostile.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hostile


async def test_memory_is_limited_and_a_crash_is_a_reason(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    first = pid(checker)
    assert first is not None
    soft, hard = psutil.Process(first).rlimit(psutil.RLIMIT_AS)
    assert soft == hard == grammar.MEMORY_BYTES
    refusal = await refused_schema(checker, STACK_OVERFLOW)
    assert "memory or depth" in refusal.message
    await checker.check_schema({"type": "null"})
    assert first not in checker.pids


async def test_a_process_that_was_killed_is_replaced_unnoticed(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    first = pid(checker)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await checker.check_schema({"type": "null"})
    assert checker.pids
    assert first not in checker.pids


async def test_an_interrupt_from_the_terminal_is_the_services_matter(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    first = pid(checker)
    assert first is not None
    os.kill(first, signal.SIGINT)
    await checker.check_schema({"type": "null"})
    assert pid(checker) == first


async def test_a_cancelled_question_does_not_answer_the_next(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    asked = asyncio.create_task(checker.validate(CATASTROPHE, CATASTROPHIC_TEXT))
    while not is_busy(checker):
        await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await checker.validate(TEXT, "1") == "$: 1 is not of type 'string'"


async def test_schemas_that_passed_are_remembered_up_to_a_bound(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "SCHEMAS_KEPT", 2)
    asked: list[str] = []
    ask = checker._ask

    async def counted(question: grammar.SchemaQuestion, *rest: str, **more: bool) -> Any:
        asked.append(json.loads(question.schema)["title"])
        return await ask(question, *rest, **more)

    monkeypatch.setattr(checker, "_ask", counted)
    for title in "aabacab":
        await checker.check_schema({"type": "null", "title": title})
    assert asked == ["a", "b", "c", "b"]
    for _ in range(2):
        await refused_schema(checker, {"type": "string", "const": 1, "title": "bad"})
    assert asked[-2:] == ["bad", "bad"]


async def test_closing_leaves_no_process_and_refuses_whoever_waits(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    assert pid(checker) is not None
    process = psutil.Process(pid(checker))
    waiting = asyncio.create_task(checker.validate(CATASTROPHE, CATASTROPHIC_TEXT))
    while not is_busy(checker):
        await asyncio.sleep(0)
    await checker.close()
    assert (await refused(waiting)).code == "SHUTTING_DOWN"
    assert not process.is_running()
    assert pid(checker) is None
    await checker.close()


async def test_closing_while_the_first_process_starts_refuses_whoever_waits(
    checker: Checker,
) -> None:
    waiting = asyncio.create_task(checker.check_schema(TEXT))
    while pid(checker) is None:
        await asyncio.sleep(0)
    await checker.close()
    assert (await refused(waiting)).code == "SHUTTING_DOWN"


async def test_closing_after_a_process_was_replaced_refuses_whoever_waits(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checker.check_schema(TEXT)
    (process,) = [process for process in checker._pool._processes if process._child]
    first = process._child
    assert first is not None
    has_asked_another = asyncio.Event()
    exchange = process._exchange

    async def told(child: Process, body: bytes, seconds: float) -> bytes:
        if child is not first:
            has_asked_another.set()
        return await exchange(child, body, seconds)

    monkeypatch.setattr(process, "_exchange", told)
    first.kill()
    waiting = asyncio.create_task(checker.validate(CATASTROPHE, CATASTROPHIC_TEXT))
    async with asyncio.timeout(30):
        await has_asked_another.wait()
    await checker.close()
    assert (await refused(waiting)).code == "SHUTTING_DOWN"


async def test_a_schema_is_not_seen_among_the_processes_and_the_environment_is_not_passed_on(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    await checker.check_schema({"const": "confidential"})
    process = psutil.Process(pid(checker))
    assert process.cmdline()[1:] == ["-m", "steerserve.engines.sandbox.schemas"]
    assert "A_SECRET" not in process.environ()


async def test_the_process_ends_with_its_input(checker: Checker) -> None:
    await checker.check_schema(TEXT)
    (child,) = [process._child for process in checker._pool._processes if process._child]
    assert child.stdin is not None
    child.stdin.close()
    assert await child.wait() == 0


DOCUMENTS: list[tuple[Any, str, str | None]] = [
    (TEXT, '"a"', None),
    (TEXT, " 1 ", "$: 1 is not of type 'string'"),
    ({"items": {"maximum": 3}}, "[1, 5]", "$[1]: 5 is greater than the maximum of 3"),
    ({"required": ["a"]}, '{"b": 1}', "$: 'a' is a required property"),
    (True, "[NaN]", "not JSON: NaN is no JSON number"),
    (True, "-Infinity", "not JSON: -Infinity is no JSON number"),
    (True, '{"a": 1', "not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
    (True, "", "not JSON: Expecting value: line 1 column 1 (char 0)"),
    ({"const": "x\ny"}, '"x"', "$: 'x\\ny' was expected"),
    ({"$defs": {"a b": TEXT}, "$ref": "#/$defs/a%20b"}, '"a"', None),
]


@pytest.mark.parametrize(("schema", "text", "reason"), DOCUMENTS)
def test_a_document_is_valid_or_the_reason_is_said_in_one_line(
    schema: Any, text: str, reason: str | None
) -> None:
    assert grammar.validate(schema, text) == reason


async def test_a_document_too_deep_to_validate_is_not_called_invalid(checker: Checker) -> None:
    refusal = await refused(checker.validate(True, "[" * 5000 + "]" * 5000))
    assert refusal.code == "CONSTRAINED_OUTPUT_UNCHECKED"


def test_a_reason_has_a_bound() -> None:
    reason = grammar.validate({"maxLength": 1}, json.dumps("y" * 10_000))
    assert reason is not None
    assert len(reason) == grammar.REASON_CHARACTERS


def test_a_rehearsal_ends_at_a_dead_end(tokenizer: grammar.LLTokenizer) -> None:
    """The walk over the references refuses this schema, so the engine is given it directly."""
    schema: Any = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    reason = grammar._rehearse(grammar._compiled(schema, tokenizer))
    assert reason == "leads to a place from which no document can be finished"


def test_a_process_that_does_not_start_is_an_error_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar.sys, "executable", "/bin/false")

    async def ask() -> None:
        checker = Checker()
        assert (await refused(checker.check_schema(True))).code == "INTERNAL_ERROR"
        await checker.close()

    asyncio.run(ask())
