"""The tokenizer of the loaded model, asked over HTTP. It has the methods of a tokenizer of transformers that
lm-evaluation-harness calls, so an evaluation needs no file of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from steerserve.client import Client
from steerserve.control.inference.views import TokenizedText
from steerserve.evals.steering import WrongArgument

AT_ONCE = 16
"""Texts that are tokenized at once."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text, or of each of several texts."""

    input_ids: Any


class ServiceTokenizer:
    """The tokenizer of `model`, which must be loaded.

    Raises:
        WrongArgument: another model is loaded.
        steerserve.ServiceError: the service refuses a text, or does not answer.
    """

    eos_token: str | None = None
    """The service ends an answer at the EOS itself, and does not show it."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._known: dict[tuple[str, bool], list[int]] = {}
        empty = self._ask(text="")
        self._beginning = "".join(empty.pieces)
        self.bos_token_id = empty.ids[0] if empty.ids else empty.bos_token_id
        self.eos_token_id = empty.eos_token_id

    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True, **_: object
    ) -> Encoded:
        if isinstance(text, str):
            return Encoded(self._encode(text, add_special_tokens))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return Encoded(list(pool.map(lambda one: self._encode(one, add_special_tokens), text)))

    def keep(self, texts: Iterable[str], *, add_special_tokens: bool) -> None:
        """Tokenize texts that are asked for next, several at once. The texts of an earlier call are forgotten."""
        self._known = {}
        distinct = list(dict.fromkeys(texts))
        found = self(distinct, add_special_tokens=add_special_tokens).input_ids
        for text, ids in zip(distinct, found, strict=True):
            self._known[text, add_special_tokens and not self._begins(text)] = ids

    def batch_decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._client.detokenize(ids).text if ids else "" for ids in rows]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        **_: object,
    ) -> str:
        """A conversation as the service renders it. It continues a last message of the assistant, and begins an answer
        after every other message."""
        is_continued = bool(messages) and messages[-1]["role"] == "assistant"
        if add_generation_prompt == is_continued:
            raise WrongArgument(
                "the service renders a conversation for the next answer: its last message is the assistant's exactly "
                "where that is continued"
            )
        return self._ask(messages=messages).text

    def _encode(self, text: str, has_special: bool) -> list[int]:
        has_special = has_special and not self._begins(text)
        known = self._known.get((text, has_special))
        if known is not None:
            return list(known)
        return self._ask(text=text, add_special_tokens=has_special).ids

    def _begins(self, text: str) -> bool:
        """Whether a text has its BOS already, as a rendered conversation may."""
        return bool(self._beginning) and text.startswith(self._beginning)

    def _ask(self, **asked: Any) -> TokenizedText:
        made = self._client.tokenize(**asked)
        if made.model != self._model:
            raise WrongArgument(f"the loaded model is {made.model}, and no longer {self._model}")
        return made
