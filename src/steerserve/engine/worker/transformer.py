"""A transformers checkpoint opened from its folder: configuration, tokenizer and weights on their device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from steerserve.engine.worker import memory
from steerserve.errors import Refusal

Report = Callable[[str, float], None]


class Transformer:
    """What a language model and an encoder have in common. `kind` is the automatic class that loads the weights."""

    def __init__(
        self, path: Path, kind: Any, config: Any, *, trust_remote_code: bool, report: Report
    ) -> None:
        common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        self.config = config
        self.device = memory.device()
        report("loading_tokenizer", 5.0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **common)
        self.longest_token = max((len(t) for t in self.tokenizer.get_vocab()), default=1)
        report("loading_weights", 10.0)
        model = kind.from_pretrained(
            path, dtype=_dtype(config, self.device), low_cpu_mem_usage=True, **common
        )
        report("moving_to_device", 80.0)
        self.model: Any = model.to(self.device).eval().requires_grad_(False)
        self.dtype: torch.dtype = next(self.model.parameters()).dtype

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def check_quantization(quantization: str) -> None:
    """Raises:
    Refusal: UNSUPPORTED_QUANTIZATION.
    """
    if quantization != "FP16":
        raise Refusal(
            "UNSUPPORTED_QUANTIZATION",
            f"{quantization} cannot be applied by this engine; register the model as FP16",
            quantization=quantization,
        )


def configuration(path: Path, trust_remote_code: bool) -> Any:
    """The configuration of a folder."""
    return AutoConfig.from_pretrained(
        path, trust_remote_code=trust_remote_code, local_files_only=True
    )


def first_line(error: Exception) -> str:
    """An error of the library in one short line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _dtype(config: Any, device: torch.device) -> torch.dtype:
    """bfloat16 and, on a host without a card, float32 stay as stored; all else is half precision on a card and
    float32 on a host, which computes no faster in float16."""
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or config.dtype
    if stored == torch.bfloat16:
        return torch.bfloat16
    return torch.float16 if device.type == "cuda" else torch.float32
