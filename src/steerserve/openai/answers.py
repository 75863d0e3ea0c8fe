"""What the routes of `/v1` answer, as types for the description of the API. They only describe: no answer is checked or
converted by them while the service runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, get_type_hints

from pydantic import ConfigDict, WithJsonSchema, with_config
from typing_extensions import TypedDict

from steerserve.errors import TABLE
from steerserve.parts.part import load
from steerserve.parts.registry import parts

CLOSED = ConfigDict(extra="forbid")
Finish = Literal["stop", "length"]


class TokenUsage(TypedDict):
    """The tokens of the prompts and of the completions of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


ServiceBlock: Any = TypedDict(  # type: ignore[misc]
    "ServiceBlock",
    {
        name: NotRequired[load(kind)]
        for part in parts().values()
        for name, kind in part.told.items()
    },
)
ServiceBlock.__doc__ = "What an answer has beside the OpenAI protocol."


class AnswerMessage(TypedDict):
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str


class ScoredToken(TypedDict):
    """A token with its natural log-probability and its text as bytes of UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(ScoredToken):
    """The most probable token, with the next most probable ones."""

    top_logprobs: list[ScoredToken]


class ChatLogprobs(TypedDict):
    """The log-probabilities of a scored choice."""

    content: list[ChosenToken]


class ChatChoice(TypedDict):
    """One choice. Only choices of scoring requests have `logprobs`."""

    index: int
    message: AnswerMessage
    finish_reason: Finish
    logprobs: NotRequired[ChatLogprobs | None]


class CompletionLogprobs(TypedDict):
    """The log-probabilities of a scored choice, one entry for each token. The first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One choice. Only choices of scoring requests have `logprobs`."""

    index: int
    text: str
    finish_reason: Finish
    logprobs: NotRequired[CompletionLogprobs | None]


@with_config(CLOSED)
class ChatCompletion(TypedDict):
    """An answer to a chat. `created` is in seconds since 1970."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    system_fingerprint: str
    steered: NotRequired[bool]
    steering_changed: NotRequired[Literal[True]]
    service: NotRequired[ServiceBlock]


@with_config(CLOSED)
class TextCompletion(TypedDict):
    """A completion of prompts. `created` is in seconds since 1970."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage
    system_fingerprint: str
    steered: NotRequired[bool]
    steering_changed: NotRequired[Literal[True]]
    service: NotRequired[ServiceBlock]


class OutputText(TypedDict):
    """The text of a response. `logprobs` has an entry for each token, where the request includes them. There are never
    annotations."""

    type: Literal["output_text"]
    text: str
    annotations: list[str]
    logprobs: list[ChosenToken]


class OutputMessage(TypedDict):
    """The message that the model wrote. It is incomplete where the token limit or a failure has cut it."""

    type: Literal["message"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class CachedTokens(TypedDict):
    """Always 0: reused keys and values are not counted."""

    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(TypedDict):
    """Always 0: no part of an answer is told apart as reasoning."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """The tokens of the prompt and of the answer."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class CutShort(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class AnswerFormat(TypedDict):
    """The form that the request asks for."""

    type: Literal["text", "json_object", "json_schema"]
    name: NotRequired[str]
    strict: NotRequired[bool]
    schema: NotRequired[dict[str, object] | bool]


class AnswerText(TypedDict):
    """How the text was asked for."""

    format: AnswerFormat


@with_config(CLOSED)
class ResponseObject(TypedDict):
    """A response. `created_at` is in seconds since 1970. A stream sends it with the status `in_progress` first, and
    ends with it."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: Fault | None
    incomplete_details: CutShort | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: Literal[False]
    previous_response_id: None
    store: Literal[False]
    system_fingerprint: str
    temperature: float
    text: AnswerText
    tool_choice: Literal["none"]
    tools: list[str]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    steering_changed: NotRequired[Literal[True]]
    service: NotRequired[ServiceBlock]


class EmbeddingEntry(TypedDict):
    """One embedding: numbers, or their float32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """The tokens of the inputs."""

    prompt_tokens: int
    total_tokens: int


@with_config(CLOSED)
class EmbeddingList(TypedDict):
    """The embeddings of the inputs, in their order."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


@with_config(CLOSED)
class ModelEntry(TypedDict):
    """A model that requests may name. `created` is in seconds since 1970."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


@with_config(CLOSED)
class ModelEntries(TypedDict):
    """The models that requests may name."""

    object: Literal["list"]
    data: list[ModelEntry]


@with_config(CLOSED)
class FileObject(TypedDict):
    """A stored file. Times are in seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


@with_config(CLOSED)
class FileList(TypedDict):
    """A page of the stored files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@with_config(CLOSED)
class DeletedFile(TypedDict):
    """A file that was deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(TypedDict):
    """Why the input of a batch is refused. `line` counts from 1; null where the fault is of the whole input."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    """Every fault of an input."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(TypedDict):
    """The lines of a batch, and those that are answered."""

    total: int
    completed: int
    failed: int


@with_config(CLOSED)
class BatchObject(TypedDict):
    """A batch. Times are in seconds since 1970."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchFaults | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "in_progress", "cancelling", "failed", "completed", "expired", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    usage: ResponseUsage


@with_config(CLOSED)
class BatchList(TypedDict):
    """A page of the batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


FaultCode = Annotated[
    str, WithJsonSchema({"type": "string", "enum": sorted({row.v1_code for row in TABLE.values()})})
]


class Fault(TypedDict):
    """Why a request was refused. `code` is stable. `param` names the part of the request that is wrong. `retry_after`
    is in seconds, and is only there in the last event of a stream."""

    message: str
    type: str
    code: FaultCode
    param: str | None
    details: NotRequired[dict[str, object]]
    retry_after: NotRequired[int]


@with_config(CLOSED)
class FaultBody(TypedDict):
    """The body of every refusal."""

    error: Fault


def answered(kind: object) -> dict[int | str, dict[str, object]]:
    """The answer of a route, for its declaration."""
    return {200: {"model": kind, "description": "the answer"}}


def streamed(kind: Any) -> dict[int | str, dict[str, object]]:
    """The answer of a route that can stream, for its declaration, with the objects that parts of requests add to it."""
    of_parts = {
        name: NotRequired[load(form)]
        for part in parts().values()
        for name, form in part.beside.items()
    }
    made: Any = TypedDict(kind.__name__, get_type_hints(kind, include_extras=True) | of_parts)  # type: ignore[misc]
    made.__doc__ = kind.__doc__
    kind = with_config(CLOSED)(made)
    words = "the answer; with `stream: true` as server-sent events"
    return {200: {"model": kind, "description": words, "content": {"text/event-stream": {}}}}
