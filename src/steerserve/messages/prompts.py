"""Rules about prompts for both kinds of engine: last messages that are continued, and refusals of lengths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.rules.steering.positions import Span

LENGTH_MARGIN = 4
"""A token may stand for this many times the length of the longest token, because tokenizers normalise texts first."""

MARK = "[the text that is continued]"
"""Stands for the text of an assistant message while a template renders that message."""

_CONTENT = "[the content of message {}]"
_MARKED = re.compile(r"\[the content of message ([0-9]+)\]")

Prompt = m.Text | m.Chat


class NamedPrompt:
    """Names the prompt in every refusal that is raised inside the block."""

    def __init__(
        self, prompts: Sequence[Prompt | m.Tokens], index: int, field: str = "prompt"
    ) -> None:
        self._is_one = len(prompts) == 1
        prompt = prompts[index]
        if isinstance(prompt, m.Chat) or prompt.is_chat:
            self._where = f"extra_messages[{index - 1}]" if index else "messages"
        else:
            self._where = field if self._is_one else f"{field}[{index}]"

    def __enter__(self) -> str | None:
        """The prompt's name among several."""
        return None if self._is_one else self._where

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Refusal):
            return
        message = error.message if self._is_one else f"{self._where}: {error.message}"
        is_whole = error.param is None and self._is_one
        is_of_prompt = error.param in (None, "prompt", "messages") and not is_whole
        param = self._where if is_of_prompt else error.param
        raise Refusal(error.code, message, param=param, **error.details) from error


class Continuation:
    """A conversation for a chat template. A last assistant message is continued: the template renders the messages
    before it with the generation prompt, and the text of the assistant message follows verbatim.

    Many templates refuse a conversation without messages. Where the assistant message is the only one, the template
    renders a marked message instead, and the rendering before the mark is the beginning of the prompt.
    """

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages = list(messages)
        self._partial = ""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self._partial = self.messages.pop()["content"] or ""
        self._is_marked = not self.messages
        if self._is_marked:
            self.messages.append({"role": "assistant", "content": MARK})

    def text(self, rendered: str) -> str:
        """The whole prompt, from the rendering of `messages`.

        Raises:
            Refusal: INVALID_PARAMETER when the template drops the marked message.
        """
        if self._is_marked:
            before, mark, _ = rendered.partition(MARK)
            if not mark:
                raise Refusal(
                    "INVALID_PARAMETER",
                    "the model's chat template cannot begin with an assistant message",
                    param="messages",
                )
            rendered = before
        return rendered + self._partial

    def skeleton(self) -> list[dict[str, object]]:
        """The messages with a mark in the place of each content. Rendered, they tell what the template writes around
        the contents."""
        return [
            message if self._is_marked else {**message, "content": _CONTENT.format(at)}
            for at, message in enumerate(self.messages)
        ]

    def contents(self, rendered: str, skeleton: str) -> tuple[Span, ...]:
        """The characters of `text(rendered)` that are contents of messages, from the rendering of `skeleton`.

        Raises:
            Refusal: INVALID_INTERVENTION where the template writes the contents otherwise than they are, or than they
                are without the blanks around them.
        """
        end = len(self.text(rendered))
        spans = [Span("assistant", end - len(self._partial), end)] if self._partial else []
        if self._is_marked:
            return tuple(spans)
        texts = [str(message["content"]) for message in self.messages]
        for written in (texts, [text.strip() for text in texts]):
            places = _places(rendered, skeleton, written)
            if places is not None:
                found = [Span(str(self.messages[at]["role"]), *place) for at, place in places]
                return (*found, *spans)
        raise Refusal(
            "INVALID_INTERVENTION",
            "the model's chat template changes the contents of messages, so positions cannot name roles",
            param="messages",
        )


def _places(
    rendered: str, skeleton: str, texts: Sequence[str]
) -> list[tuple[int, tuple[int, int]]] | None:
    """The number of each content with its characters in the rendering; None where the rendering is another text than
    the skeleton with the contents in the place of the marks."""
    places, at = [], 0
    for turn, part in enumerate(_MARKED.split(skeleton)):
        text = texts[int(part)] if turn % 2 else part
        if not rendered.startswith(text, at):
            return None
        if turn % 2:
            places.append((int(part), (at, at + len(text))))
        at += len(text)
    return places if at == len(rendered) else None


def check_ids(prompt: m.Prompt, vocabulary: int, code: str) -> None:
    """Refuse a token that a client has sent and the model does not know. On a GPU, such a token would end the process.

    Raises:
        Refusal: `code`, with the place of the token in the request.
    """
    if not isinstance(prompt, m.Tokens) or prompt.place is None:
        return
    for at, token in enumerate(prompt.ids):
        if token >= vocabulary:
            place = f"{prompt.place}[{at}]"
            raise Refusal(
                code,
                f"{place}: token id {token} is outside the vocabulary of {vocabulary} tokens",
                param=place,
                token_id=token,
                vocabulary=vocabulary,
            )


def check_length(
    prompt: Prompt, longest_token: int, context: int, max_tokens: int | None = None
) -> None:
    """Refuse a text that cannot fit the context before it is tokenized, because tokenizing it would hold up other
    requests. `max_tokens` is the number that the request names.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, with the least number of tokens that the prompt can have.
    """
    texts = [prompt.text] if isinstance(prompt, m.Text) else [c["content"] for c in prompt.messages]
    least = sum(len(text or "") for text in texts) // (LENGTH_MARGIN * max(1, longest_token))
    if least > context:
        raise too_long(least, context, max_tokens)


def check_spelled(text: m.Text, longest: int) -> None:
    """Refuse a text that is too long to be answered token by token.

    Raises:
        Refusal: PAYLOAD_TOO_LARGE.
    """
    if len(text.text) > longest:
        raise Refusal(
            "PAYLOAD_TOO_LARGE",
            f"the text has {len(text.text)} characters; at most {longest} can be tokenized here",
            characters=len(text.text),
            maximum=longest,
        )


def too_long(least: int, context: int, max_tokens: int | None) -> Refusal:
    """The refusal of a prompt that has `least` tokens or more."""
    return Refusal(
        "CONTEXT_LENGTH_EXCEEDED",
        f"This model's maximum context length is {context} tokens. However, your prompt has at "
        f"least {least} tokens.",
        max_context_tokens=context,
        requested_tokens=least + (max_tokens or 0),
        prompt_tokens=least,
        max_tokens=max_tokens,
    )


def max_tokens(wanted: m.Sampling, prompt_tokens: int, context: int) -> int:
    """The most completion tokens of a prompt: the number that the request names, or else the default, lowered to the
    room that the context leaves.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED when the prompt leaves no room, or less than the number that the request names.
    """
    named = wanted.max_tokens
    asked = named if named is not None else 1
    if prompt_tokens + asked > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            # the words by which client libraries know this refusal
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{prompt_tokens + (named or 0)} tokens ({prompt_tokens} in the prompt, "
            f"{named or 0} for the completion).",
            max_context_tokens=context,
            requested_tokens=prompt_tokens + (named or 0),
            prompt_tokens=prompt_tokens,
            max_tokens=named,
        )
    return named if named is not None else min(wanted.default_max_tokens, context - prompt_tokens)
