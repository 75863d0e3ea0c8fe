"""SAE checkpoints as people publish them: sniff the files, read what they claim, load them into the canonical form.

`FORMATS` is the one table, asked in its order; the first format whose files are there describes the checkpoint in a
`Description`. Adding a format is adding a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from steerserve.engine.wire.messages import Claims, SaeSource
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.engine.worker.sae.formats import (
    dictionary_learning,
    gemma,
    openmoss,
    others,
    saelens,
    sparsify,
    unlabelled,
)
from steerserve.engine.worker.sae.formats.building import build, claims
from steerserve.engine.worker.sae.formats.description import Description, with_overrides
from steerserve.engine.worker.sae.formats.sources import SourceFiles, look
from steerserve.errors import Refusal

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
    """What the checkpoint at `source` claims, from its headers and configurations; overrides stand in their place.

    Raises:
        Refusal: SAE_LOAD_FAILED when no format fits, naming the files found; when a file is damaged or a tensor is
            missing or misshapen. VALIDATION_ERROR for an override that means nothing.
    """
    return claims(_read(source))


def load(source: SaeSource, dtype: torch.dtype | None = None, *, is_asked: bool = True) -> Sae:
    """The checkpoint at `source` in canonical form, its matrices in `dtype` (None for that of the file), cast one by one; where
    it was not asked for, in bfloat16 if a weight has no room in it.

    Raises:
        Refusal: SAE_INCOMPATIBLE for what can never be attached, with the reason; SAE_LOAD_FAILED as `inspect`, for
            numbers that are not finite, and when an override is needed.
    """
    return build(_read(source), dtype, is_asked=is_asked)


def _read(source: SaeSource) -> Description:
    found = look(source)
    for _, read in FORMATS:
        description = read(found)
        if description is not None:
            return with_overrides(description, source.overrides)
    files = found.listing()[:20]
    raise Refusal(
        "SAE_LOAD_FAILED",
        f"no SAE format fits the files {files or '(none)'}; known: {', '.join(name for name, _ in FORMATS)}",
        files=files,
    )
