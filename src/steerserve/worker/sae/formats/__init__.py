"""SAE checkpoints as people publish them: recognise the format, read what the files claim, load the canonical form.

`FORMATS` is asked in its order. The first format that recognises the files describes the checkpoint in a `Description`.
A new format is a new row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from steerserve.errors import Refusal
from steerserve.messages import Claims, SaeSource
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.formats import (
    dictionary_learning,
    gemma,
    openmoss,
    others,
    saelens,
    sparsify,
    unlabelled,
)
from steerserve.worker.sae.formats.building import build, claims
from steerserve.worker.sae.formats.description import Description, with_overrides
from steerserve.worker.sae.formats.sources import SourceFiles, look

FORMATS: tuple[tuple[str, Callable[[SourceFiles], Description | None]], ...] = (
    ("SAELens", saelens.describe),
    ("sparsify", sparsify.describe),
    ("dictionary_learning", dictionary_learning.describe),
    ("Llama Scope", openmoss.describe),
    ("Gemma Scope", gemma.describe_scope_1),
    ("Gemma Scope 2", gemma.describe_scope_2),
    ("Qwen Scope", others.describe_qwen_scope),
    ("Goodfire", others.describe_goodfire),
    ("attention SAEs", others.describe_attention),
    ("qresearch", others.describe_qresearch),
    ("circuit-tracer", others.describe_mwhanna),
    ("cross-layer transcoder", others.describe_cross_layer),
    ("temporal SAE", others.describe_temporal),
    ("unlabelled", unlabelled.describe),
)


def inspect(source: SaeSource) -> Claims:
    """What the checkpoint at `source` claims. The claims come from headers and configurations; overrides replace them.

    Raises:
        Refusal: SAE_LOAD_FAILED when no format recognises the files, when a file is damaged, or when a tensor is
            missing or has the wrong shape. VALIDATION_ERROR for an override without a meaning here.
    """
    return claims(_describe(source))


def load(source: SaeSource, dtype: torch.dtype | None = None, *, is_asked: bool = True) -> Sae:
    """The checkpoint at `source` in canonical form.

    Args:
        dtype: the dtype of the matrices; None keeps the dtype of the file. Each matrix is cast on its own.
        is_asked: the operator asked for `dtype`. Otherwise the matrices are kept in bfloat16 if a weight is beyond the
            range of `dtype`.

    Raises:
        Refusal: SAE_INCOMPATIBLE, with the reason, for a checkpoint that can never be attached; SAE_LOAD_FAILED as
            `inspect` does, for numbers that are not finite, and when an override is needed.
    """
    return build(_describe(source), dtype, is_asked=is_asked)


def _describe(source: SaeSource) -> Description:
    files = look(source)
    for _, describe in FORMATS:
        description = describe(files)
        if description is not None:
            return with_overrides(description, source.overrides)
    names = files.listing()[:20]
    raise Refusal(
        "SAE_LOAD_FAILED",
        f"no SAE format fits the files {names or '(none)'}; known: {', '.join(name for name, _ in FORMATS)}",
        files=names,
    )
