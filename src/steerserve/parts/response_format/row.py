"""The document that one row writes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

from torch import Tensor

from steerserve.errors import Refusal
from steerserve.parts.response_format.form import ResponseFormat
from steerserve.parts.row_part import RowFacts, RowPart
from steerserve.rules.inference.schema_dialect import JSON_OBJECT
from steerserve.worker.rows import constrain
from steerserve.worker.rows.constrain import Grammar, Grammars


class ResponseFormatRow(RowPart):
    """Lets the row write the tokens alone that go on with its document."""

    def __init__(self, _form: ResponseFormat, facts: RowFacts) -> None:
        grammar: Grammar = facts.compiled
        self.constraint = grammar.constraint()
        self.masker = MASKER

    @classmethod
    def compile_form(cls, form: ResponseFormat, grammars: Grammars) -> Future[Grammar]:
        return grammars.compile(form.schema or JSON_OBJECT)

    @property
    def is_complete(self) -> bool:
        return self.constraint.is_complete

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        """Raises:
        Refusal: CONSTRAINED_OUTPUT_INVALID.
        """
        self.constraint.advance(token)


class DocumentMasker:
    """Fills the masks of all rows together."""

    def mask(
        self, logits: Tensor, parts: Sequence[RowPart | None]
    ) -> tuple[Tensor, dict[int, Refusal]]:
        rows = cast(Sequence[ResponseFormatRow | None], parts)
        return constrain.mask(logits, [None if row is None else row.constraint for row in rows])


MASKER = DocumentMasker()
