"""What `chat`, `complete` and `compare` answer."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from steerserve.client import shown
from steerserve.client.faults import ODD, UnexpectedAnswer, from_error
from steerserve.control.inference import views
from steerserve.nouns.features.form import FeatureDetails
from steerserve.nouns.patches.rules import PatchedCell, Patches

if TYPE_CHECKING:
    from steerserve.client.arrays import Activations, Matrix

_END = "[DONE]"
_OF_CHUNKS = ("choices", "service")
"""Fields of which every chunk of a stream has its own."""
STATE = "x-service-steering-state"
SOURCES = "x-service-steering-sources"


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of the prompts and of the completions of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its natural log-probability, None for the first token of a text, which follows nothing. `top` has
    the most probable tokens at its place."""

    text: str
    logprob: float | None
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A generated token under the model as it was steered, and under the model without steering; each is None where
    the request did not ask for it. `choice` is the number of its choice."""

    choice: int
    token_id: int
    text: str
    steered: ScoredToken | None
    plain: ScoredToken | None


@dataclass(frozen=True, slots=True)
class TokenReadings:
    """What a probe or a vector reads at one layer, with a value for each generated token of a choice: at the position
    from which the token was drawn."""

    choice: int
    id: str
    layer: int
    site: str
    values: Sequence[float]


class Answer:
    """The answer to a chat or to a text completion.

    Attributes:
        raw: the whole answer, as the service wrote it. The answer of a stream is put together from its chunks.
        headers: the headers of the answer, with lower-case names.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        headers: Mapping[str, str],
        pieces: Sequence[str] | None = None,
    ) -> None:
        self.raw = raw
        self.headers = headers
        self._pieces = pieces

    @property
    def texts(self) -> list[str]:
        """The text of every choice."""
        return [_text(choice) for choice in self.raw["choices"]]

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return _text(self.raw["choices"][0])

    @property
    def model(self) -> str:
        return str(self.raw["model"])

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length` for the first choice; None for a stream that was left before its end."""
        reason: str | None = self.raw["choices"][0]["finish_reason"]
        return reason

    @property
    def usage(self) -> Usage | None:
        """The tokens of the request; None for a stream that was left before its end."""
        found = self.raw.get("usage")
        return None if found is None else Usage(**{name: found[name] for name in _COUNTS})

    @property
    def steering_state(self) -> str | None:
        """The digest of all that was added to the model; None where nothing was."""
        return self.headers.get(STATE)

    @property
    def steering_sources(self) -> list[str]:
        """Whose edits the answer had at its start: `live`, `profile:<id>`, `request` and others."""
        return [one.strip() for one in self.headers.get(SOURCES, "").split(",") if one.strip()]

    @property
    def steering_changed(self) -> bool:
        """Whether an operator changed the steering while the answer was written."""
        return bool(self.raw.get("steering_changed", False))

    @property
    def steering_report(self) -> dict[str, Any] | None:
        """Where each edit acted, for a request with `return_steering_report`; else None."""
        report: dict[str, Any] | None = self.raw.get("steering_report")
        return report

    @property
    def activations(self) -> Activations | None:
        """The SAE activations and the values of sites as arrays; None where the request asked for none."""
        service = self.raw.get("service") or {}
        block, sites = service.get("sae_activations"), service.get("activations_raw")
        if block is None and sites is None:
            return None
        arrays = importlib.import_module("steerserve.client.arrays")
        read: Activations = arrays.Activations(block, self._pieces, sites or ())
        return read

    @property
    def logprobs(self) -> list[ScoredToken] | None:
        """The scored tokens of the first choice; None where the request scored none."""
        found = self.raw["choices"][0].get("logprobs")
        if found is None:
            return None
        if "content" in found:
            return [
                ScoredToken(
                    one["token"],
                    one["logprob"],
                    {near["token"]: near["logprob"] for near in one["top_logprobs"]},
                )
                for one in found["content"]
            ]
        places = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
        return [ScoredToken(text, logprob, top or {}) for text, logprob, top in places]

    @property
    def written(self) -> list[WrittenToken] | None:
        """The generated tokens with their log-probabilities, for a request with `return_logprobs`; else None."""
        found = (self.raw.get("service") or {}).get("logprobs")
        if found is None:
            return None
        return [
            WrittenToken(
                one.get("choice", 0),
                one["token_id"],
                one["token"],
                _distribution(one, "steered"),
                _distribution(one, "plain"),
            )
            for one in found
        ]

    @property
    def readings(self) -> list[TokenReadings] | None:
        """What probes and vectors read, for a request with `return_readings`; else None."""
        found = (self.raw.get("service") or {}).get("readings")
        if found is None:
            return None
        return [TokenReadings(**{"choice": 0} | one) for one in found]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r})"

    def _repr_html_(self) -> str:
        read = self.activations
        text = f'<div style="white-space:pre-wrap">{escape(self.text)}</div>'
        return text if read is None else text + read._repr_html_()


def checked(answer: Answer) -> Answer:
    """The answer, if it has the form of one. Whatever else Python raises is for the caller."""
    _ = answer.texts, answer.text, answer.model, answer.finish_reason, answer.usage
    return answer


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def _distribution(token: Mapping[str, Any], side: str) -> ScoredToken | None:
    """A generated token on one side of `return_logprobs`."""
    found = token.get(side)
    if found is None:
        return None
    top = {near["token"]: near["logprob"] for near in found["top"]}
    return ScoredToken(token["token"], found["logprob"], top)


def _text(choice: Mapping[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


class Folded:
    """Puts the chunks of a stream together to the answer that the request would have had without `stream`."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._whole: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._service: dict[str, Any] = {}
        self.is_done = False

    def add(self, line: str) -> str:
        """The new text of the first choice in one line of the stream.

        Raises:
            ServiceError: the stream failed.
        """
        if not line.startswith("data: "):
            return ""
        sent = line.removeprefix("data: ")
        if sent == _END:
            self.is_done = True
            return ""
        try:
            chunk = json.loads(sent)
            if "error" in chunk:
                raise from_error(chunk["error"], None, {})
            return self._fold(chunk)
        except ODD:
            why = f"a line of the stream has another form than this version knows: {sent[:100]}"
            raise UnexpectedAnswer(why) from None

    def _fold(self, chunk: dict[str, Any]) -> str:
        shared = {name: value for name, value in chunk.items() if name not in _OF_CHUNKS}
        self._whole |= {name: value for name, value in shared.items() if value is not None}
        own = chunk.get("service") or {}
        block, known = own.get("sae_activations"), self._service.get("sae_activations")
        readings = _joined(self._service.get("readings"), own.get("readings"))
        self._service |= own
        if readings:
            self._service["readings"] = readings
        if block is not None and known is not None:
            positions = [*known["positions"], *block["positions"]]
            self._service["sae_activations"] = {**block, "positions": positions}
        new = ""
        for part in chunk["choices"]:
            text = (part["delta"].get("content") if "delta" in part else part["text"]) or ""
            at = self._choices.setdefault(part["index"], {"text": "", "finish_reason": None})
            at["text"] += text
            at["finish_reason"] = part["finish_reason"] or at["finish_reason"]
            at["is_chat"] = "delta" in part
            new += text if part["index"] == 0 else ""
        return new

    def answer(self) -> Answer:
        """The answer as far as it came."""
        raw = dict(self._whole)
        raw["object"] = str(raw.get("object", "")).removesuffix(".chunk")
        raw["choices"] = [_choice(i, at) for i, at in sorted(self._choices.items())] or [
            _choice(0, {"text": "", "finish_reason": None, "is_chat": False})
        ]
        if self._service:
            raw["service"] = self._service
        return Answer(raw, self._headers)


def _joined(
    known: Sequence[Mapping[str, Any]] | None, new: Sequence[Mapping[str, Any]] | None
) -> list[Mapping[str, Any]]:
    """Readings with those of the next tokens."""
    joined: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for one in (*(known or ()), *(new or ())):
        name = one.get("choice", 0), one["id"], one["layer"], one["site"]
        before = joined.get(name, {"values": []})["values"]
        joined[name] = {**one, "values": [*before, *one["values"]]}
    return list(joined.values())


def _choice(index: int, found: Mapping[str, Any]) -> dict[str, Any]:
    shared = {"index": index, "finish_reason": found["finish_reason"]}
    if found["is_chat"]:
        return {"message": {"role": "assistant", "content": found["text"]}, **shared}
    return {"text": found["text"], **shared}


class _Streamed:
    """What both kinds of streams have."""

    _folded: Folded | None = None

    @property
    def answer(self) -> Answer:
        """The answer, once the stream has ended or was closed.

        Raises:
            RuntimeError: the stream goes on.
        """
        if self._folded is None or not self._is_over:
            raise RuntimeError("the answer is there at the end of the stream")
        return self._folded.answer()

    _is_over = False


class Stream(_Streamed):
    """The pieces of a text, as the model writes them. Closing it, or leaving its block, ends the answer."""

    def __init__(self, lines: Generator[str, None, None], headers: Mapping[str, str]) -> None:
        self._lines = lines
        self._folded = Folded(headers)
        self._pieces = self._read(self._folded)

    def _read(self, folded: Folded) -> Iterator[str]:
        try:
            for line in self._lines:
                text = folded.add(line)
                if text:
                    yield text
            _check(folded)
        finally:
            self.close()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the answer. The service stops writing it."""
        self._is_over = True
        self._lines.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Streamed):
    """The pieces of a text, as the model writes them. Closing it, or leaving its block, ends the answer."""

    def __init__(self, lines: AsyncGenerator[str, None], headers: Mapping[str, str]) -> None:
        self._lines = lines
        self._folded = Folded(headers)
        self._pieces = self._read(self._folded)

    async def _read(self, folded: Folded) -> AsyncIterator[str]:
        try:
            async for line in self._lines:
                text = folded.add(line)
                if text:
                    yield text
            _check(folded)
        finally:
            await self.close()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def close(self) -> None:
        """End the answer. The service stops writing it."""
        self._is_over = True
        await self._lines.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _check(folded: Folded) -> None:
    if not folded.is_done:
        raise UnexpectedAnswer("the stream ended before the answer did")


class Comparison(views.Comparison, frozen=True, kw_only=True):
    """The completions of a prompt, in the order of the intensities of the request."""

    def _repr_html_(self) -> str:
        titles = [f"intensity {side.intensity:g}" for side in self.sides]
        return shown.columns(titles, [escape(side.text) for side in self.sides])


class PatchSweep(Patches, frozen=True, kw_only=True):
    """A patch sweep."""

    def matrix(
        self,
        figure: Literal["normalised", "value"] = "normalised",
        *,
        site: str | None = None,
        head: int | None = None,
    ) -> Matrix:
        """A figure of the cells [layers, columns]: of a site, the first one where none is named, and of one head where
        one is named. A column is a group of positions, or a head at such a group. NaN where the figure is null."""
        rows, columns, cells = self._table(site, head)
        found: list[list[float | None]] = [[None] * len(columns) for _ in rows]
        for cell in cells:
            place = columns.index((cell.head, cell.positions))
            found[rows.index(cell.layer)][place] = getattr(cell, figure)
        made: Matrix = importlib.import_module("steerserve.client.arrays").matrix(found)
        return made

    def layers(self, site: str | None = None) -> list[int]:
        """The layers of the rows of `matrix`."""
        return self._table(site, None)[0]

    def _table(
        self, site: str | None, head: int | None
    ) -> tuple[list[int], list[tuple[int | UnsetType, tuple[int, ...]]], list[PatchedCell]]:
        site = self.cells[0].site if site is None else site
        cells = [one for one in self.cells if one.site == site and head in (None, one.head)]
        rows = dict.fromkeys(one.layer for one in cells)
        columns = dict.fromkeys((one.head, one.positions) for one in cells)
        return list(rows), list(columns), cells

    def _repr_html_(self) -> str:
        sites = dict.fromkeys(one.site for one in self.cells)
        return "".join(shown.heat_map(*self._shown(site)) for site in sites)

    def _shown(self, site: str) -> tuple[str, list[str], dict[str, list[tuple[float, str]]]]:
        """The title, the names of the columns, and by the name of its row the strength and the tooltip of each cell."""
        rows, columns, cells = self._table(site, None)
        found = {(one.layer, one.head, one.positions): one for one in cells}
        titles = []
        for head, positions in columns:
            text = self.tokens[positions[0]] if len(positions) == 1 else f"{len(positions)} tokens"
            titles.append(text if head is UNSET else f"head {head} {text}")
        marks: dict[str, list[tuple[float, str]]] = {}
        for layer in rows:
            marks[str(layer)] = [
                (
                    one.normalised or 0.0,
                    f"layer {layer}, positions {list(one.positions)}: {one.value:.4g}",
                )
                for one in (found[layer, head, positions] for head, positions in columns)
            ]
        return f"{site}, {self.direction}", titles, marks


class Feature(FeatureDetails, frozen=True, kw_only=True):
    """One feature of an SAE."""

    def _repr_html_(self) -> str:
        title = f"feature {self.feature_idx}" + (f": {self.label}" if self.label else "")
        return shown.card(title, self)
