"""Whether the number of threads changes the bits of a model's logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

_ROWS, _TOKENS = 3, 24


@torch.inference_mode()
def is_equal_with(model: PreTrainedModel, vocabulary: int, counts: Sequence[int]) -> bool:
    """Whether a causal language model on the host gives the same bits with each of these numbers of threads: in a pass
    over prompts, and in a pass over the next tokens. A model that cannot run such passes counts as unequal. The number
    of threads is then the last of `counts`."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (_ROWS, _TOKENS), generator=source)
    try:
        first: tuple[Tensor, Tensor] | None = None
        for count in counts:
            torch.set_num_threads(count)
            passes = _passes(model, ids)
            first = first or passes
            if not all(map(torch.equal, first, passes)):
                return False
        return True
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError):
        return False
    finally:
        torch.set_num_threads(counts[-1])


def _passes(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The logits after the last token but one, and after the last token."""
    prompt = model(input_ids=ids[:, :-1], use_cache=True)
    new = model(input_ids=ids[:, -1:], past_key_values=prompt.past_key_values, use_cache=True)
    return prompt.logits[:, -1], new.logits[:, -1]
