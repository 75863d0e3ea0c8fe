"""What a prompt is refused for once its tokens are counted, whichever engine counts them."""

from __future__ import annotations

from collections.abc import Sequence

from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal

LENGTH_MARGIN = 4
"""How many times its longest token's length a token may stand for after a tokenizer's own normalisation."""

Prompt = m.Text | m.Chat


class Place:
    """Names the offending prompt in what is refused inside the block."""

    def __init__(self, prompts: Sequence[Prompt], index: int, field: str = "prompt") -> None:
        self._is_one = len(prompts) == 1
        if isinstance(prompts[index], m.Chat):
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
        param = error.param if self._is_one and error.param != "prompt" else self._where
        raise Refusal(error.code, message, param=param, **error.details) from error


def check_length(prompt: Prompt, longest_token: int, context: int) -> None:
    """A text that cannot possibly fit is refused before it is tokenized, which would hold up others.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, with the least number of tokens it can have.
    """
    texts = [prompt.text] if isinstance(prompt, m.Text) else [c["content"] for c in prompt.messages]
    least = sum(len(text or "") for text in texts) // (LENGTH_MARGIN * max(1, longest_token))
    if least > context:
        raise Refusal(
            "CONTEXT_LENGTH_EXCEEDED",
            f"This model's maximum context length is {context} tokens. However, your prompt has at "
            f"least {least} tokens.",
            max_context_tokens=context,
            requested_tokens=least,
            prompt_tokens=least,
            max_tokens=None,
        )


def max_tokens(wanted: m.Sampling, prompt_tokens: int, context: int) -> int:
    """Completion tokens of a prompt: what the request names, or the default lowered to what the context leaves.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED when the prompt leaves no room, or not the room that was named.
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
