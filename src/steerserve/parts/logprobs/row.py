"""The log-probabilities of the tokens that one row writes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from steerserve.messages import Distribution
from steerserve.parts.logprobs.form import FIELD, Logprobs, WrittenToken
from steerserve.parts.row_part import RowFacts, RowPart
from steerserve.rules.field_faults import refuse_parameter
from steerserve.worker.rows.distributions import distributions


class LogprobsRow(RowPart):
    """The tokens of a row with their log-probabilities: under the logits from which they were drawn, before
    temperature, penalties and masks, and under the model without steering, which reads the same tokens once the row has
    ended."""

    def __init__(self, form: Logprobs, facts: RowFacts) -> None:
        """Raises:
        Refusal: INVALID_PARAMETER where the answer may have too many log-probabilities.
        """
        entries = facts.rows * facts.max_tokens * (form.has_steered + form.has_plain)
        entries *= form.top + 1
        if entries > form.max_entries:
            raise refuse_parameter(
                FIELD,
                f"the answer may have {entries} log-probabilities; at most {form.max_entries}; "
                "ask for a smaller max_tokens or top",
                entries=entries,
                max_entries=form.max_entries,
            )
        self._form = form
        self._text_of = facts.text_of
        self._tokens: list[int] = []
        self._steered: list[Distribution] = []
        self._plain: list[Distribution] = []

    @property
    def needs_plain(self) -> bool:
        return self._form.has_plain and bool(self._tokens)

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        self._tokens.append(token)
        if self._form.has_steered:
            self._steered += distributions(logits[None], [token], self._form.top, self._text_of)

    def read_plain(self, tokens: Sequence[int], logits: Tensor) -> None:
        self._plain += distributions(logits, tokens, self._form.top, self._text_of)

    def chunk(self, *, is_last: bool) -> list[WrittenToken] | None:
        if not is_last:
            return None
        return [
            WrittenToken(
                token,
                self._text_of(token),
                self._steered[at] if self._form.has_steered else None,
                self._plain[at] if self._form.has_plain else None,
            )
            for at, token in enumerate(self._tokens)
        ]
