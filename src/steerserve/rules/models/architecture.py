"""What a checkpoint can do, judged by the name of its architecture."""

from __future__ import annotations

import re

from steerserve.errors import Refusal

_GENERATIVE = re.compile(
    r"(ForCausalLM|LMHead(\w*Model)?|ForConditionalGeneration|ChatGLMModel|GenerationDecoder)$"
)


_GGUF_ENCODERS = frozenset(
    "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 modern-bert neo-bert eurobert t5encoder "
    "gemma-embedding".split()
)
"""Values of `general.architecture` in GGUF files of models that only embed."""


def is_embedding_only(architecture: str | None, engine: str = "checkpoint") -> bool:
    """Whether a model has no head that predicts the next token, as BERT has none.

    A model without a named architecture counts as a language model.
    """
    if engine == "gguf":
        return architecture in _GGUF_ENCODERS
    return architecture is not None and not _GENERATIVE.search(architecture)


def check_generates(name: str, architecture: str | None, engine: str = "checkpoint") -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a model that can only embed.
    """
    if is_embedding_only(architecture, engine):
        raise Refusal(
            "INVALID_PARAMETER",
            f"{name!r} ({architecture}) is an embedding model: it can only be used on /v1/embeddings",
            param="model",
            architecture=architecture,
        )


def max_context(text: object) -> int:
    """The number of tokens of context with which the model is served."""
    return int(getattr(text, "max_position_embeddings", 0) or 0) or 2048


def first_range(text: object) -> int | None:
    """The length of a row from which on a longrope model turns positions by other angles; None for other models.

    Such a model turns the positions of all rows of a pass by the angles of the longest row.
    """
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    original = rope.get("original_max_position_embeddings")
    original = original or getattr(text, "original_max_position_embeddings", None)
    return int(original) if original and int(original) < max_context(text) else None
