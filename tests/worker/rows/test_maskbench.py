"""The MaskBench sample: real schemas with valid and invalid instances. Skipped where the sample is not at hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from steerserve.engines.sandbox.schemas import Checker
from steerserve.errors import Refusal
from steerserve.rules.inference.schema_subset import check_subset, compact
from steerserve.worker.rows.constrain import Grammars, RowConstraint
from tests import SHARED
from tests.engines.documents import grammars, write
from tests.worker import models

SAMPLE = SHARED / "maskbench" / "visible.jsonl"
STEPS = 300

pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="the MaskBench sample is not here")


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tiny() -> Grammars:
    return grammars()


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker()
    yield checker
    await checker.close()


def row_of(source: Grammars, case: dict[str, Any]) -> RowConstraint:
    return source.compile(compact(case["schema"])).result().constraint()


async def test_every_schema_is_accepted(cases: list[dict[str, Any]], checker: Checker) -> None:
    assert len(cases) == 300
    refused = []
    for case in cases:
        try:
            check_subset(case["schema"])
            await checker.check_schema(case["schema"])
        except Refusal as refusal:
            refused.append((case["name"], refusal.message))
    assert not refused


def test_every_valid_instance_is_accepted_and_every_invalid_one_rejected(
    cases: list[dict[str, Any]], tiny: Grammars
) -> None:
    """Without exception, the order of keys included."""
    tokenizer = models.tokenizer()
    wrong = []
    counted = 0
    for case in cases:
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            row = row_of(tiny, case)
            try:
                for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
                    row.advance(token)
                is_accepted = row.may_end
            except Refusal:
                is_accepted = False
            counted += 1
            if is_accepted is not test["valid"]:
                wrong.append((case["name"], text, test["valid"]))
    assert counted == 872
    assert not wrong


def test_every_document_that_is_written_to_its_end_validates(
    cases: list[dict[str, Any]], tiny: Grammars
) -> None:
    texts = write(tiny, [row_of(tiny, case) for case in cases], STEPS)
    finished = [(case, text) for case, text in zip(cases, texts, strict=True) if text is not None]
    assert len(finished) > len(cases) * 0.6
    for case, text in finished:
        Draft202012Validator(case["schema"]).validate(json.loads(text))
