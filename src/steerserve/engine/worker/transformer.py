"""A transformers checkpoint opened from its folder: configuration, tokenizer and weights on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from steerserve.engine.worker import memory, placement, precision

Report = Callable[[str, float], None]


class Transformer:
    """What a language model and an encoder have in common. `kind` is the automatic class that loads the weights.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION; MODEL_LOAD_FAILED for a split of a model without a list of layers.
    """

    def __init__(
        self,
        path: Path,
        kind: Any,
        config: Any,
        *,
        quantization: str,
        devices: Sequence[str],
        trust_remote_code: bool,
        report: Report,
    ) -> None:
        common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        self.config = config
        self.device = torch.device(devices[0]) if devices else memory.device()
        self.held = precision.held(quantization, config, has_card=self.device.type == "cuda")
        where = placement.device_map(kind, config, devices, self.device, trust_remote_code)
        report("loading_tokenizer", 5.0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **common)
        self.longest_token = max((len(t) for t in self.tokenizer.get_vocab()), default=1)
        report("loading_weights", 10.0)
        self.model: Any = kind.from_pretrained(
            path,
            dtype=getattr(torch, self.held.dtype),
            device_map=where,
            **precision.load_options(self.held, kind, config, trust_remote_code=trust_remote_code),
            **common,
        )
        report("moving_to_device", 80.0)
        self.model.eval().requires_grad_(False)
        if self.held.quantizes:
            precision.let_go_of_files(self.model)
        self.dtype: torch.dtype = getattr(torch, self.held.dtype)

    @property
    def parameters(self) -> int:
        return int(self.model.num_parameters())

    @property
    def devices(self) -> list[torch.device]:
        """Where its tensors lie, the first that is used in a pass first."""
        found = dict.fromkeys([self.device, *(p.device for p in self.model.parameters())])
        return list(found)

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def configuration(path: Path, trust_remote_code: bool) -> Any:
    """The configuration of a folder."""
    return AutoConfig.from_pretrained(
        path, trust_remote_code=trust_remote_code, local_files_only=True
    )


def first_line(error: Exception) -> str:
    """An error of the library in one short line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
