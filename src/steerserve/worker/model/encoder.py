"""An embedding-only checkpoint (BERT and its like): plain forward passes, pooled over the real tokens.

Such a model is served like any other, but it can only embed. It has no cache and cannot be steered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn
from transformers import AutoModel

from steerserve.errors import Refusal
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker import memory
from steerserve.worker.model.transformer import LoadOptions, Transformer, first_line

_UNLIMITED = 1_000_000
"""A tokenizer whose limit is above this number has no limit."""


class Encoder(Transformer):
    """A loaded embedding model.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION; MODEL_LOAD_FAILED when the model does not give hidden states for plain
            tokens.
    """

    def __init__(self, path: Path, **options: Unpack[LoadOptions]) -> None:
        super().__init__(path, AutoModel, **options)
        self.layers = int(getattr(self.config, "num_hidden_layers", 0))
        self.hidden_size = int(getattr(self.config, "hidden_size", 0))
        self.vocabulary = int(self.config.vocab_size)
        self.model_max_context = self._max_context()
        for layers in [part for part in self.model.modules() if isinstance(part, nn.ModuleList)]:
            for layer in layers:
                layer.register_forward_pre_hook(self._beat)
        options["report"]("checking", 90.0)
        self._check()

    @torch.inference_mode()
    def pooled(self, rows: list[list[int]]) -> Tensor:
        """The mean of the last hidden layer over each row's tokens, [rows, hidden] in float32."""
        self.pulse.passing(Activity.PREFILL)
        width = max(len(ids) for ids in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, ids in enumerate(rows):
            tokens[i, : len(ids)] = torch.tensor(ids)
            mask[i, : len(ids)] = 1
        mask = mask.to(self.device)
        out = self.model(input_ids=tokens.to(self.device), attention_mask=mask)
        hidden: Tensor = out.last_hidden_state.float().to(self.device)
        weights = mask.float()[..., None]
        return (hidden * weights).sum(1) / weights.sum(1)

    def _beat(self, *_: object) -> None:
        """Each layer of a pass is a heartbeat."""
        self.pulse.beat()

    def _max_context(self) -> int:
        """The most tokens of a text: the number of positions, or the limit of the tokenizer where that is lower."""
        positions = int(getattr(self.config, "max_position_embeddings", 0) or 0) or _UNLIMITED
        # the RoBERTa family numbers its positions from the one after the padding token
        for name, module in self.model.named_modules():
            padding = getattr(module, "padding_idx", None)
            if name.endswith("position_embeddings") and padding is not None:
                positions = min(positions, module.num_embeddings - padding - 1)
        named = int(getattr(self.tokenizer, "model_max_length", 0) or 0) or _UNLIMITED
        return min(positions, named if named < _UNLIMITED else positions)

    def _check(self) -> None:
        try:
            self.pooled([self.encode("a b", special=True), self.encode("a", special=True)])
        except Exception as error:
            # an architecture that does not accept plain tokens may raise any error
            if memory.is_exhausted(error):
                raise
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"the model does not give hidden states for plain tokens: {first_line(error)}",
            ) from error
