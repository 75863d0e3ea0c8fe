"""A transformers checkpoint opened from its folder: configuration, tokenizer and weights on their device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from steerserve.engine.worker import memory
from steerserve.engine.worker.model import placement, precision
from steerserve.errors import Refusal

SHOWN = 4
"""The most names of tensors in one refusal."""

LINE_CHARACTERS = 200
_PATH = re.compile(r"(?:/[^/\s'\"]+)+/")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

Report = Callable[[str, float], None]


class Transformer:
    """The common part of a language model and an encoder. `kind` is the library's automatic class that loads the
    weights.

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
        used = [torch.device(name) for name in devices] or [memory.device()]
        self.device = used[0]
        if self.device.type == "cuda":
            # calls that act on the current card would open a context on the first card, which may hold no model
            torch.cuda.set_device(self.device)
        self.held = precision.held(quantization, config, used)
        where = placement.device_map(kind, config, devices, self.device, trust_remote_code)
        report("loading_tokenizer", 5.0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **common)
        self.longest_token = max((len(t) for t in self.tokenizer.get_vocab()), default=1)
        report("loading_weights", 10.0)
        loaded: Any = kind.from_pretrained(
            path,
            output_loading_info=True,
            dtype=getattr(torch, self.held.dtype),
            device_map=where,
            **precision.load_options(self.held, kind, config, trust_remote_code=trust_remote_code),
            **common,
        )
        self.model: Any = loaded[0]
        _check_whole(loaded[1])
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
        """The devices of the model's tensors. The first is the device on which a pass begins."""
        return list(dict.fromkeys([self.device, *(p.device for p in self.model.parameters())]))

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _check_whole(loading_info: dict[str, Any]) -> None:
    """Check that the checkpoint has every tensor of its architecture, because the library fills missing tensors with
    random numbers.

    The pooler of an encoder may be missing, because it is not used here and many checkpoints leave it out.

    Raises:
        Refusal: MODEL_LOAD_FAILED.
    """
    missing = sorted(n for n in loading_info.get("missing_keys", ()) if "pooler." not in n)
    odd = [
        entry if isinstance(entry, str) else entry[0] for entry in loading_info["mismatched_keys"]
    ]
    for why, names in (("does not have", missing), ("has in another shape", sorted(odd))):
        if names:
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            raise Refusal(
                "MODEL_LOAD_FAILED",
                f"the checkpoint {why} {len(names)} of the tensors that its configuration asks for: {shown}",
            )


def configuration(path: Path, trust_remote_code: bool) -> Any:
    """The configuration of a folder."""
    return AutoConfig.from_pretrained(
        path, trust_remote_code=trust_remote_code, local_files_only=True
    )


def first_line(error: Exception) -> str:
    """An error of the library in one short line, without the paths and addresses of this machine."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    line = _ADDRESS.sub("...", _PATH.sub("", line))
    return line[:LINE_CHARACTERS] or type(error).__name__


def described_error(error: Exception) -> str:
    """The first line of an error behind the name of its type."""
    line, kind = first_line(error), type(error).__name__
    return kind if line == kind else f"{kind}: {line}"
