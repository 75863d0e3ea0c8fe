"""Questions to the process that tokenizes the prompts of a checkpoint, and their answers."""

from __future__ import annotations

import msgspec


class TextQuestion(msgspec.Struct, array_like=True):
    """Texts to tokenize, each with whether it gets the tokenizer's special tokens.

    `path` is the folder of the checkpoint. `longest` is the number of characters above which only the beginning of a
    text is tokenized first: a text whose beginning has more than `context` tokens is answered by that number alone. The
    process ends itself after `seconds`. With `is_trial`, the tokens of the vocabulary are decoded too.
    """

    path: str
    trust_remote_code: bool
    texts: list[tuple[str, bool]]
    context: int
    longest: int
    seconds: float
    is_trial: bool = False


class TextAnswer(msgspec.Struct, array_like=True):
    """For each text its token ids, or for a text that is too long a number of tokens that it has at least. `reason`
    says why there is no answer."""

    rows: list[list[int] | int] = []
    reason: str | None = None
