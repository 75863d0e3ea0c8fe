"""What an architecture's name says a checkpoint can do."""

from __future__ import annotations

import re

from steerserve.errors import Refusal

_GENERATIVE = re.compile(
    r"(ForCausalLM|LMHead(\w*Model)?|ForConditionalGeneration|ChatGLMModel|GenerationDecoder)$"
)


def is_embedding_only(architecture: str | None) -> bool:
    """Whether a checkpoint has no head that says which token comes next (BERT and its like).

    A checkpoint that names no architecture is taken as a language model.
    """
    return architecture is not None and not _GENERATIVE.search(architecture)


def check_generates(name: str, architecture: str | None) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a model that can only embed.
    """
    if is_embedding_only(architecture):
        raise Refusal(
            "INVALID_PARAMETER",
            f"{name!r} ({architecture}) is an embedding model: it can only be used on /v1/embeddings",
            param="model",
            architecture=architecture,
        )
